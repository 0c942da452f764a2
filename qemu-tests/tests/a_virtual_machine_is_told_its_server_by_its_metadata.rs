//! Boot files without a server: a config drive, or the metadata service of a cloud, says where it is and has the token
//! that lets the machine in. What else they say does not matter.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use qemu_tests::{Bench, LIMIT, UUID, timed};
use slipway_protocol::NodeState;
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::MachineConfig;
use xtask::lab::server::Place;

/// This host's loopback as machines see it on a network to which the address of the metadata service belongs.
const LINK_LOCAL: Place = Place { listen: "127.0.0.1", host: "169.254.2.2", arguments: &[] };

#[test]
fn a_virtual_machine_is_told_its_server_by_a_config_drive() -> Result<()> {
    timed("a virtual machine is told its server by a config drive", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_that_ask("config-drive,openstack,ec2"))?;
        let meta = serde_json::json!({ "uuid": "x", "meta": {
            "slipway.server": bench.lab.url(), "slipway.token": token(&bench)?, "slipway.ca": "evil",
        }});
        let tree = bench.folder().join("tree");
        fs::create_dir_all(tree.join("openstack/latest"))?;
        fs::write(tree.join("openstack/latest/meta_data.json"), meta.to_string())?;
        let drive = bench.folder().join("config-drive");
        let mut make = command("genisoimage", ["-quiet", "-R", "-V", "config-2", "-o"]);
        run_quietly(make.arg(&drive).arg(&tree))?;
        let drive = format!("if=none,id=drive,format=raw,readonly=on,file={}", drive.display());
        let extra = ["-drive", &drive, "-device", "virtio-blk-pci,drive=drive"].map(str::to_owned).to_vec();
        let machine = MachineConfig { extra, ..bench.machine() };
        enrols(&bench, &machine, "network: the config drive says where the server is")?;
        Ok(())
    })
}

#[test]
fn a_virtual_machine_is_told_its_server_by_a_metadata_service() -> Result<()> {
    timed("a virtual machine is told its server by a metadata service", || {
        let bench = Bench::at(LINK_LOCAL, |lab| lab.make_boot_files_that_ask("config-drive,ec2"))?;
        let user_data = format!(
            "#cloud-config\nusers: [default]\nslipway: {{server: '{}', token: '{}', ca: evil}}\n",
            bench.lab.url(),
            token(&bench)?
        );
        let service = service(bench.folder(), &user_data)?;
        let netdev = format!("user,id=cloud,net=169.254.0.0/16,guestfwd=tcp:169.254.169.254:80-cmd:{service}");
        let card = "virtio-net-pci,netdev=cloud,mac=52:54:00:7d:2f:01,romfile=";
        let extra = ["-netdev", &netdev, "-device", card].map(str::to_owned).to_vec();
        let machine = MachineConfig { nics: Vec::new(), extra, ..bench.machine() };
        let by = "eth0: the metadata service in the form of EC2 says where the server is";
        let console = enrols(&bench, &machine, by)?;
        ensure!(console.contains("also sets slipway.ca, which is ignored"), "{console}");
        Ok(())
    })
}

fn token(bench: &Bench) -> Result<String> {
    bench.lab.operator(&["node", "add", "--name", "m1", "--uuid", UUID])?;
    Ok(bench.lab.operator(&["token", "add", "--node", "m1"])?.trim().to_owned())
}

/// Starts the machine, and waits until it is let in. Returns its console.
fn enrols(bench: &Bench, config: &MachineConfig, said: &str) -> Result<String> {
    let mut machine = bench.power_on(config)?;
    machine.wait_for_console(said, LIMIT)?;
    bench.wait_for(&machine, "enrolled", |node| node.state == NodeState::Enrolled)?;
    machine.console()
}

/// Makes a program that serves one connection like EC2, version 2: it has a token, and user-data for who shows it.
fn service(folder: &Path, user_data: &str) -> Result<String> {
    let (program, data) = (folder.join("service"), folder.join("user-data"));
    fs::write(&data, user_data)?;
    let text = format!(
        r#"
read -r line
has=
while read -r header; do
    case "$header" in
    *-token:*right*) has=yes ;;
    "$(printf '\r')") break ;;
    esac
done
answer() {{ printf 'HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %s\r\n\r\n' "$1" "$2"; }}
case "$line$has" in
"PUT /latest/api/token "*) answer '200 OK' 5; printf right ;;
"GET /latest/user-data "*yes) answer '200 OK' "$(wc -c < {data})"; cat {data} ;;
*) answer '401 Unauthorized' 0 ;;
esac
"#,
        data = data.display()
    );
    fs::write(&program, text)?;
    Ok(format!("sh {}", program.display()))
}
