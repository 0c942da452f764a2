//! The hooks of the package, with the programs that they use: ipmitool and a BMC of OpenIPMI, and wakeonlan.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::program::{Ended, fail, succeed};
use crate::support::TestServer;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// Takes a hook of the package over into the folder of hooks of a test.
fn take_over(server: &TestServer, hook: &str) {
    let folder = server.folder.path().join("power");
    std::fs::create_dir_all(&folder).unwrap();
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slipway-server/power").join(hook);
    std::fs::copy(packaged, folder.join(hook)).unwrap();
}

/// A free UDP port of the loopback address.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a BMC. Its machine is a program that notes what it is told in `told`, and whether it is on in `is`.
fn bmc(folder: &Path, port: u16) -> Ended {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    let folder_name = folder.display();
    write(
        "machine",
        format!(
            "#!/bin/sh\ncd {folder_name}\ncase \"$1 $2\" in\n'get power') echo power:$(cat is) ;;\n\
             'get boot') echo boot:none ;;\n'set power') echo $3 > is; echo power $3 >> told ;;\n\
             *) echo $2 $3 >> told ;;\nesac\n"
        ),
    );
    std::fs::set_permissions(folder.join("machine"), std::fs::Permissions::from_mode(0o755)).unwrap();
    write("is", "0\n".to_owned());
    write(
        "lan.conf",
        format!(
            "name \"bmc\"\nset_working_mc 0x20\n  startlan 1\n    addr 127.0.0.1 {port}\n    priv_limit admin\n    \
             allowed_auths_admin none md2 md5 straight\n    guid a123456789abcdefa123456789abcdef\n  endlan\n  \
             chassis_control \"{folder_name}/machine\"\n  user 2 true \"slipway\" \"hunter2=\" admin 10 none md2 md5 \
             straight\n"
        ),
    );
    write(
        "bmc.emu",
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n"
            .to_owned(),
    );
    std::fs::create_dir(folder.join("state")).unwrap();
    let mut command = Command::new("ipmi_sim");
    command.args(["-c", "lan.conf", "-f", "bmc.emu", "-s", "state", "-n", "-p"]).current_dir(folder);
    Ended(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ipmitool_switches_a_machine_through_its_bmc() {
    let server = TestServer::start().await;
    let data = server.data_path();
    server.add_released("web1").await;
    take_over(&server, "ipmi");
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let _bmc = bmc(folder.path(), port);
    let password = server.folder.path().join("password");
    let port = format!("port={port}");
    let set = |text: &str| {
        std::fs::write(&password, text).unwrap();
        let set = ["node", "power", "set", "web1", "--hook", "ipmi", "--option", "ip=127.0.0.1", "--option", &port];
        let user = ["--option", "username=slipway", "--password-file", password.to_str().unwrap()];
        succeed(&data, &[&set[..], &user].concat());
    };
    set("wrong");
    let refused = fail(&data, &["node", "power", "status", "web1"]);
    assert!(refused.contains("Unable to establish IPMI v2 / RMCP+ session"), "{refused}");
    set("hunter2=");
    assert_eq!(succeed(&data, &["node", "power", "status", "web1"]), "web1 is off\n");
    assert_eq!(succeed(&data, &["node", "power", "boot", "--yes", "web1"]), "web1 is on\n");
    assert_eq!(succeed(&data, &["node", "power", "cycle", "--yes", "web1"]), "web1 is on\n");
    assert_eq!(succeed(&data, &["node", "power", "off", "--yes", "web1"]), "web1 is off\n");
    let told = std::fs::read_to_string(folder.path().join("told")).unwrap();
    assert_eq!(told.lines().collect::<Vec<_>>(), ["boot pxe", "power 1", "power 0", "power 1", "power 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_magic_packet_wakes_a_machine() {
    let server = TestServer::start().await;
    let data = server.data_path();
    succeed(&data, &["node", "add", "--name", "web1", "--mac", "52:54:00:12:34:56", "--mac-only", "--release"]);
    take_over(&server, "wake-on-lan");
    let machine = UdpSocket::bind("127.0.0.1:0").unwrap();
    machine.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = format!("port={}", machine.local_addr().unwrap().port());
    let set = ["node", "power", "set", "web1", "--hook", "wake-on-lan", "--option", "broadcast=127.0.0.1"];
    succeed(&data, &[&set[..], &["--option", &port]].concat());
    let on = succeed(&data, &["node", "power", "on", "web1"]);
    assert_eq!(on, "web1 is told so; its hook cannot tell whether it is on\n");
    let mut packet = [0; 200];
    let length = machine.recv(&mut packet).unwrap();
    assert_eq!(packet[..length], [&[0xff; 6][..], &MAC.repeat(16)].concat());
    succeed(&data, &[&set[..], &["--option", "mac=52-54-00-12-34-56"]].concat());
    let wrong = fail(&data, &["node", "power", "on", "web1"]);
    assert!(wrong.ends_with("52-54-00-12-34-56 is not a MAC address such as 52:54:00:12:34:56"), "{wrong}");
    let off = fail(&data, &["node", "power", "off", "--yes", "web1"]);
    assert!(off.ends_with("for `action=off`: wake-on-LAN can switch a machine on, but not off"), "{off}");
}
