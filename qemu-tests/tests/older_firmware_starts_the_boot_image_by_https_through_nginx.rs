//! Firmware that knows RSA alone loads the boot image through nginx, with the configuration in `packaging/`. It trusts
//! the site's root for firmware. With another one it breaks off before it asks for anything.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::{Bench, LIMIT, firmware_trusts, timed};
use xtask::command::{command, run_quietly};
use xtask::lab::{Lab, free_ports};
use xtask::qemu::{Boot, Machine, MachineConfig};
use xtask::{host, workspace};

/// nginx, stopped on drop.
struct Nginx(Child);

impl Nginx {
    /// Starts it with the shipped configuration, for other ports and another data folder. It logs to the folder.
    fn start(folder: &Path, data: &Path, server: &str, port: u16) -> Result<Self> {
        host::ensure(&["nginx-light"])?;
        fs::create_dir_all(folder)?;
        let mut site = fs::read_to_string(workspace::root().join("packaging/nginx/slipway-boot.conf"))?;
        for (shipped, here) in [
            ("listen 443 ssl;", format!("listen 127.0.0.1:{port} ssl;")),
            ("proxy_pass https://127.0.0.1:8443;", format!("proxy_pass {server};")),
            (" /var/lib/slipway/", format!(" {}/", data.display())),
        ] {
            ensure!(site.contains(shipped), "the shipped configuration has no {shipped:?}");
            site = site.replace(shipped, &here);
        }
        fs::write(folder.join("site.conf"), site)?;
        let scratch =
            ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
        let main = format!(
            "user root; daemon off; pid nginx.pid; error_log error.log info; events {{}}
             http {{ access_log access.log; {} include site.conf; }}",
            scratch.join(" ")
        );
        fs::write(folder.join("nginx.conf"), main)?;
        let mut nginx = command("/usr/sbin/nginx", ["-p"]);
        nginx.arg(folder).arg("-c").arg(folder.join("nginx.conf")).stdin(Stdio::null()).stderr(Stdio::null());
        let nginx = Self(nginx.spawn().context("starting nginx")?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > LIMIT {
                bail!("starting nginx: {}", fs::read_to_string(folder.join("error.log"))?);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It ends in an orderly way, together with its workers. Both fail only if it has already ended.
        let _ = run_quietly(&mut command("kill", ["-TERM", &self.0.id().to_string()]));
        let _ = self.0.wait();
    }
}

/// A server that has a certificate for firmware. Returns the root of that.
fn serve_firmware(lab: &mut Lab) -> Result<String> {
    let root = lab.operator(&["ca", "firmware"])?;
    lab.stop_server()?;
    lab.start_server()?;
    Ok(root)
}

#[test]
fn older_firmware_starts_the_boot_image_by_https_through_nginx() -> Result<()> {
    timed("older firmware starts the boot image by HTTPS through nginx", || {
        let folder = tempfile::tempdir()?;
        let mut other = Lab::new(folder.path())?;
        other.start_server()?;
        let other = other.operator(&["ca", "firmware"])?;
        let mut bench = Bench::new()?;
        let root = serve_firmware(&mut bench.lab)?;
        bench.register()?;
        let [port] = free_ports()?;
        let logs = bench.folder().join("nginx");
        let server = bench.lab.url().replace("10.0.2.2", "127.0.0.1");
        let _nginx = Nginx::start(&logs, &bench.folder().join("lab/data"), &server, port)?;
        let uri = format!("https://10.0.2.2:{port}/boot/x86_64/slipway.efi");
        let machine = |ca: &str| -> Result<MachineConfig> {
            let extra = firmware_trusts(bench.folder(), ca)?;
            Ok(MachineConfig {
                boot: Boot::Uefi { uri: Some(uri.clone()) },
                disks: Vec::new(),
                extra,
                ..bench.machine()
            })
        };

        let mut refusing = Machine::start(&machine(&other)?, &bench.folder().join("refusing"))?;
        refusing.wait_for_console(&format!("URI: {uri}"), LIMIT)?;
        refusing.wait_for_console("Error: Could not retrieve NBP file size from HTTP server.", LIMIT)?;
        drop(refusing);
        assert_eq!(fs::read_to_string(logs.join("access.log"))?, "", "it asked for something");
        let errors = fs::read_to_string(logs.join("error.log"))?;
        assert!(errors.contains("while SSL handshaking"), "no machine connected:\n{errors}");

        let machine = bench.power_on(&machine(&root)?)?;
        bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        let asked = fs::read_to_string(logs.join("access.log"))?;
        for request in
            ["\"HEAD /boot/x86_64/slipway.efi HTTP/1.1\" 200 ", "\"GET /boot/x86_64/slipway.efi HTTP/1.1\" 200 "]
        {
            assert!(asked.contains(request), "{request}: {asked}");
        }
        Ok(())
    })
}
