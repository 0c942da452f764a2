//! Commands that lose data or access ask on a terminal, and say what is lost. Scripts give `--yes`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use reqwest::StatusCode;
use slipway_protocol::{Disk, Inventory, NodeState, System};
use slipway_server::operate;

use crate::installing::add_system;
use crate::program::{fail, name_database, succeed};
use crate::support::{Machine, TestServer, UUID};

/// Runs a command on a terminal, where somebody types a line. Returns what the terminal shows, and whether the command
/// succeeded.
fn on_terminal(data: &Path, arguments: &str, typed: &str) -> (String, bool) {
    let line = format!("'{}' --data '{}' {arguments}", env!("CARGO_BIN_EXE_slipway-server"), data.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env_remove("SLIPWAY_LOG");
    name_database(&mut command, data);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{typed}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap().replace('\r', ""), output.status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_named_and_nothing_is_done_without_a_yes() {
    let server = TestServer::start().await;
    let data = server.data_path();
    server.add_released("web1").await;
    let mut request = Machine::with_uuid(UUID).request();
    let disk = |path: &str, serial: &str| Disk {
        path: path.to_owned(),
        size: 960 << 30,
        model: Some("Samsung".to_owned()),
        serial: Some(serial.to_owned()),
        ..Disk::default()
    };
    let system = System { model: Some("R640".to_owned()), ..System::default() };
    request.inventory = Inventory {
        disks: vec![disk("/dev/sda", "S4\u{1b}[2J"), disk("/dev/sdb", "S5")],
        system,
        ..Inventory::default()
    };
    let enrolled = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(enrolled.status(), StatusCode::OK);
    add_system(&server, |_| {}).await.unwrap();
    let show = async || operate::show_node(&server.store().await, "web1").await.unwrap();

    let start = "run start web1 --os debian --disk-serial S5";
    let refused = fail(&data, &start.split(' ').collect::<Vec<_>>());
    assert!(refused.ends_with("standard input is not a terminal; give --yes to continue without asking"), "{refused}");
    let (said, done) = on_terminal(&data, start, "y");
    assert!(!done && said.ends_with("starting the run: nothing was done\n"), "{said}");
    let machine = format!("web1 is enrolled: R640, UUID {UUID}\n");
    assert!(said.contains(&machine), "{said}");
    let erased = "erases Samsung, serial number S5, 960 GiB, /dev/sdb, as last seen (";
    assert!(said.contains(erased) && said.contains("type \"yes\" to continue: "), "{said}");
    let (said, _) = on_terminal(&data, "run start web1 --os debian", "no");
    let several =
        "  Samsung, serial number S4\\u{1b}[2J, 960 GiB, /dev/sda\n  Samsung, serial number S5, 960 GiB, /dev/sdb\n";
    assert!(said.contains("erases one of these disks, unless several are left") && said.contains(several), "{said}");
    let (said, _) = on_terminal(&data, "run start web1 --os debian --disk-device /dev/mapper/mpatha", "no");
    assert!(said.contains("erases /dev/mapper/mpatha, which the machine has not reported"), "{said}");
    let all = server.folder.path().join("all.yaml");
    std::fs::write(&all, "steps: [{name: wipe, action: {erase-disk: {disk: {choose: all}}}}]").unwrap();
    let (said, _) = on_terminal(&data, &format!("run start web1 --workflow {}", all.display()), "no");
    assert!(said.contains("erases all of these disks (wipe); as last seen:"), "{said}");
    let (said, _) = on_terminal(&data, "run start web1 --os debian --disk-serial S6", "no");
    assert!(said.contains("the run would fail before it writes"), "{said}");
    assert_eq!(show().await.run, None);

    let (said, done) = on_terminal(&data, start, "yes");
    assert!(done, "{said}");
    let run = show().await.run.unwrap().id;
    assert!(said.ends_with(&format!("{run}\n")), "{said}");
    // What is refused anyway is refused without a question.
    let again = fail(&data, &["run", "start", "web1", "--os", "debian"]);
    assert!(again.contains("has not finished run"), "{again}");
    let (said, _) = on_terminal(&data, "run start web1 --os debian --replace", "no");
    assert!(said.contains(&format!("ends run {run}, which is not over, as failed")), "{said}");

    let lost = [
        ("run cancel web1", format!("ends run {run} of debian as failed; no step is running\n")),
        ("node decommission --erase web1", "erases all of these disks (erase-disk); as last seen:".to_owned()),
        (
            "node decommission --erase web1",
            "when it succeeded, the node goes out of service: its credentials are refused".to_owned(),
        ),
        ("node decommission web1", "refuses its credentials from now on".to_owned()),
        ("os remove debian", "removes the settings of debian".to_owned()),
    ];
    for (command, expect) in lost {
        let (said, done) = on_terminal(&data, command, "no");
        assert!(!done && said.contains(&expect), "{said}");
    }
    let in_service = fail(&data, &["node", "remove", "web1"]);
    assert!(in_service.contains("take it out of service first"), "{in_service}");
    assert!(show().await.state != NodeState::Decommissioned && show().await.run.unwrap().id == run);
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    let (said, done) = on_terminal(&data, "node remove web1", "no");
    assert!(!done && said.contains("removes its runs and logs"), "{said}");
    succeed(&data, &["node", "remove", "--yes", "web1"]);
    succeed(&data, &["os", "remove", "--yes", "debian"]);
    let image = succeed(&data, &["image", "list"]);
    let name = image.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let (said, done) = on_terminal(&data, &format!("image remove {name}"), "yes");
    assert!(done && said.contains("and its file\n") && said.contains("is removed"), "{said}");
}
