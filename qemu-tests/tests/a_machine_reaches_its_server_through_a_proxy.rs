//! A machine in a network from which only a proxy is reachable: it cannot even look up the server's name. The proxy is
//! squid. The boot image has its address, and a host name for the machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result};
use qemu_tests::programs::Programs;
use qemu_tests::{Bench, LIMIT, noise, stream, timed};
use slipway_parts::Arch;
use slipway_protocol::StepState;
use xtask::build::image::{self, ImagePaths};
use xtask::build::kernel;
use xtask::host::command::command;
use xtask::host::packages;
use xtask::lab::server::{FOR_EMULATION, Lab, Place, free_ports};

/// A name that only the proxy knows.
const HOST: &str = "install.example";

fn make_boot_files(lab: &Lab, proxy: u16) -> Result<ImagePaths> {
    let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
    let (parts, boot, proxy) = (parts.display(), lab.boot_folder(), format!("http://10.0.2.2:{proxy}"));
    let what = ["media", "build", "--kind", "network", "--kernel", kernel::CLOUD, "--argument", FOR_EMULATION];
    let (parts, out) = (parts.to_string(), boot.display().to_string());
    let of = ["--parts", &parts, "--out", &out, "--proxy", &proxy, "--no-proxy", "192.0.2.0/24,other.example"];
    lab.operator(&[&what[..], &of, &["--hostname", "rack3-u12"]].concat())?;
    Ok(ImagePaths::below(&boot, Arch::X86_64.name()))
}

/// Starts squid, which connects to the port of the server and to no other.
fn start_squid(programs: &mut Programs, port: u16, server: &str) -> Result<()> {
    packages::ensure(&["squid"])?;
    fs::write(programs.path("hosts"), format!("127.0.0.1 {HOST}\n"))?;
    let folder = programs.folder().display();
    let configuration = format!(
        "http_port 127.0.0.1:{port}
hosts_file {folder}/hosts
pid_filename none
cache_log {folder}/cache.log
access_log stdio:{folder}/access.log
netdb_filename none
cache deny all
shutdown_lifetime 0 seconds
acl machines src 127.0.0.1
acl SSL_ports port {server}
http_access deny CONNECT !SSL_ports
http_access allow machines
http_access deny all
"
    );
    fs::write(programs.path("squid.conf"), configuration)?;
    // squid drops root's rights before it opens its logs.
    for log in ["cache.log", "access.log"] {
        fs::write(programs.path(log), "")?;
        fs::set_permissions(programs.path(log), Permissions::from_mode(0o666))?;
    }
    fs::set_permissions(programs.folder(), Permissions::from_mode(0o711))?;
    let mut squid = command("/usr/sbin/squid", ["-N", "-f"]);
    squid.arg(programs.path("squid.conf"));
    programs.start(squid, "squid.log")?;
    programs.wait_for("cache.log", "Accepting HTTP Socket connections")
}

#[test]
fn a_machine_reaches_its_server_through_a_proxy() -> Result<()> {
    timed("a machine reaches its server through a proxy", || {
        let [proxy] = free_ports()?;
        let place = Place { host: HOST, ..Place::LOOPBACK };
        let bench = Bench::at(place, |lab| make_boot_files(lab, proxy))?;
        let url = bench.lab.url();
        let (_, port) = url.rsplit_once(':').context("the server's URL has no port")?;
        let mut programs = Programs::new()?;
        start_squid(&mut programs, proxy, port)?;

        bench.register()?;
        let (image, digest) = bench.add_image(&noise(4 << 20))?;
        bench.start_run(&[stream("write", &image, digest)])?;
        let mut machine = bench.power_on(&bench.machine())?;
        machine.wait_for_console("the name of this machine is rack3-u12", LIMIT)?;
        bench.wait_for(&machine, "installed", |node| {
            node.run.as_ref().is_some_and(|run| run.steps.iter().all(|step| step.state == StepState::Succeeded))
        })?;
        let log = programs.read("access.log")?;
        assert!(log.contains(&format!("CONNECT {HOST}:{port}")), "{log}");
        Ok(())
    })
}
