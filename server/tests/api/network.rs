//! Network configuration and logins of installed systems: from what an operator writes to what cloud-init makes of it.

use std::path::Path;
use std::process::Command;

use slipway_protocol::{Action, ErrorCode, Identity, SeedCloudInit, Step};
use slipway_server::image;
use slipway_server::operate::{self, NewNode, NewRun, NodeChange, Task, WorkflowFile};
use slipway_server::run::compose::network;

use crate::packages::packages;
use crate::support::{IMAGE, TestServer, UUID};

const NETWORK: &str = "\
interfaces:
- {name: nic0, mac: 52-54-00-00-00-01}
- {name: nic1, mac: \"525400000002\"}
- {name: bond0, bond: {of: [nic0, nic1], mode: 802.3ad}}
- name: bond0.7
  vlan: {of: bond0, id: 7}
  addresses: [192.0.2.5/24, \"2001:db8::5/64\"]
  gateways: [192.0.2.1, \"2001:db8::1\"]
- {name: lan2, mac: \"52:54:00:00:00:03\", dhcp4: true, mtu: 9000}
nameservers: [192.0.2.53]
search: [site.example]
";
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA";

/// All files that cloud-init's own converter writes for a kind of network configuration, joined.
fn converted(config: &str, kind: &str, distribution: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("network-config"), folder.path().join("out"));
    std::fs::write(&from, config).unwrap();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-m", "cloudinit.cmd.devel.net_convert", "--kind", "yaml", "--output-kind", kind]);
    python.args(["--distro", distribution]).arg("--network-data").arg(&from).arg("--directory").arg(&to);
    let output = python.env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{kind}: {output:?}");
    let mut all = String::new();
    read_all(&to, &mut all);
    all
}

fn read_all(folder: &Path, all: &mut String) {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        match path.is_dir() {
            true => read_all(&path, all),
            false => all.push_str(&std::fs::read_to_string(path).unwrap()),
        }
    }
}

#[test]
fn cloud_init_makes_of_it_what_the_operator_meant() {
    let config = network::text(&operate::parse_network(NETWORK).unwrap());
    let check = |kind: &str, distribution: &str, expect: &[&str]| {
        let found = converted(&config, kind, distribution);
        for part in expect {
            assert!(found.contains(part), "{kind} has no {part:?}: {found}");
        }
    };
    let netplan = [
        "mode: 802.3ad",
        "mii-monitor-interval: 100",
        "link: bond0",
        "gateway6: 2001:db8::1",
        "- site.example",
        "macaddress: '52:54:00:00:00:02'",
    ];
    check("netplan", "ubuntu", &netplan);
    let eni = [
        "iface bond0.7 inet static\n    address 192.0.2.5/24\n",
        "vlan-raw-device bond0",
        "    gateway 192.0.2.1\n",
        "    gateway 2001:db8::1\n",
        "iface lan2 inet dhcp",
        "bond-miimon 100",
        "ATTR{address}==\"52:54:00:00:00:01\", NAME=\"nic0\"",
    ];
    check("eni", "debian", &eni);
    let sysconfig = [
        "BONDING_OPTS=\"mode=802.3ad",
        "IPADDR=192.0.2.5\n",
        "GATEWAY=192.0.2.1\n",
        "IPV6_DEFAULTGW=2001:db8::1\n",
        "PHYSDEV=bond0\n",
        "MTU=9000\n",
    ];
    check("sysconfig", "fedora", &sysconfig);
    let networkd = ["Address=2001:db8::5/64", "Gateway=192.0.2.1", "Gateway=2001:db8::1", "DNS=192.0.2.53"];
    check("networkd", "arch", &networkd);
}

#[tokio::test]
async fn a_node_keeps_its_network_and_its_runs_bring_it() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let identity = Identity { uuid: Some(UUID.to_owned()), ..Identity::default() };
    operate::add_node(&store, NewNode { name: Some("web1".to_owned()), identity, release: true, ..NewNode::default() })
        .await
        .unwrap();
    let network = operate::parse_network(NETWORK).unwrap();
    let change =
        NodeChange { network: Some(network.clone()), ssh_keys: Some(vec![KEY.to_owned()]), ..NodeChange::default() };
    operate::change_node(&store, "web1", change).await.unwrap();
    let known = operate::change_node(&store, "web1", NodeChange::default()).await.unwrap();
    assert_eq!((known.network.as_ref(), &known.ssh_keys), (Some(&network), &vec![KEY.to_owned()]));

    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, IMAGE).unwrap();
    let image = image::add(&store, &server.data(), &file, image::Known::default(), |_| {}).await.unwrap().image.digest;
    let system = serde_json::json!({ "name": "debian", "image": image, "ssh_keys": [format!("{KEY} me")] });
    operate::add_system(&store, serde_json::from_value(system).unwrap()).await.unwrap();
    let new = |task, user_data: Option<&str>| {
        let user_data = user_data.map(str::to_owned);
        NewRun { user_data, replace: true, ..NewRun::new(task) }
    };
    let start = async |new| operate::start_run(&store, "PEM", "web1", new).await;
    start(new(Task::Os("debian".to_owned()), None)).await.unwrap();
    let seed = newest_seed(&server).await;
    assert_eq!(seed.network_config, Some(network::text(&network)));
    assert_eq!(seed.ssh_keys, [format!("{KEY} me"), KEY.to_owned()]);
    let seeds = "steps: [{name: seed, action: {seed-cloud-init: {user_data: \"#cloud-config\\n\"}}}]\n";
    start(new(Task::Workflow(operate::parse_workflow(seeds).unwrap()), None)).await.unwrap();
    let seed = newest_seed(&server).await;
    assert_eq!((seed.hostname.as_deref(), &seed.ssh_keys[..]), (Some("web1"), &[KEY.to_owned()][..]));
    assert_eq!(seed.network_config, Some(network::text(&network)));

    let refused = async |new, expect: &str| {
        let message = start(new).await.unwrap_err().to_string();
        assert!(message.contains(expect), "{message}");
    };
    let config = Some("{\"ignition\": {\"version\": \"3.4.0\"}}");
    refused(new(Task::Os("debian".to_owned()), config), "has vendor_data or network_config").await;
    let none = NodeChange { network: Some(Default::default()), ..NodeChange::default() };
    assert_eq!(operate::change_node(&store, "web1", none).await.unwrap().network, None);
    start(new(Task::Os("debian".to_owned()), config)).await.unwrap();
    refused(new(Task::Os("debian".to_owned()), Some("{}")), "no ignition.version").await;
    let seed = SeedCloudInit { user_data: "{".to_owned(), ..SeedCloudInit::default() };
    let step = Step { name: "seed".to_owned(), action: Action::SeedCloudInit(seed), retries: 0, timeout: None };
    let workflow = WorkflowFile { steps: vec![step], ..WorkflowFile::default() };
    let workflow = Task::Workflow(workflow);
    refused(new(workflow, None), "the Ignition config cannot be used: line 1, column 1: ").await;
    server.stop().await;
}

/// The seed in the run of the only node.
async fn newest_seed(server: &TestServer) -> SeedCloudInit {
    let store = server.store().await;
    let mut connection = store.read().await.unwrap();
    let node = slipway_server::store::nodes::find(&mut connection, "web1").await.unwrap().unwrap();
    let run = slipway_server::store::runs::newest_of(&mut connection, &node.id).await.unwrap().unwrap();
    let mut seeds = run.workflow.into_iter().filter_map(|step| match step.action {
        Action::SeedCloudInit(seed) => Some(seed),
        _ => None,
    });
    seeds.next().unwrap()
}

#[tokio::test]
async fn what_makes_no_sense_changes_nothing() {
    let server = TestServer::start().await;
    let store = server.store().await;
    server.add_released("web1").await;
    let refused = async |change, expect: &str| {
        let error = operate::change_node(&store, "web1", change).await.unwrap_err();
        assert!(matches!(error, slipway_server::Error::Refused { code: ErrorCode::InvalidRequest, .. }), "{error:?}");
        assert!(error.to_string().contains(expect), "{error}");
    };
    let network = operate::parse_network(&NETWORK.replace("id: 7", "id: 4095")).unwrap();
    let change = NodeChange { network: Some(network), ssh_keys: Some(vec![KEY.to_owned()]), ..NodeChange::default() };
    refused(change, "the network is not valid: interface \"bond0.7\" is VLAN 4095").await;
    let keys = NodeChange { ssh_keys: Some(vec![KEY.to_owned(), "ssh-dss A".to_owned()]), ..NodeChange::default() };
    refused(keys, "SSH key 2 cannot be used").await;
    let known = operate::show_node(&store, "web1").await.unwrap();
    assert_eq!((known.network, known.ssh_keys.len()), (None, 0));
    let error = operate::parse_network("interfaces:\n- {name: a, mack: b}\n").unwrap_err().to_string();
    assert!(error.starts_with("the network is not valid: unknown field `mack`") && error.contains("line 2"), "{error}");
    server.stop().await;
}
