//! Whole machines in the way slipway's tests use them: through firmware, network boot loader and disk, like machines in
//! a rack.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use slipway_parts::Arch;
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig, Nic, firmware};
use xtask::lab::target_image::{self, System};

/// Firmware and systemd are slow under emulation on a busy host.
const MINUTES: Duration = Duration::from_secs(300);

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn config(boot: Boot) -> MachineConfig {
    MachineConfig {
        arch: Arch::X86_64,
        boot,
        secure_boot: false,
        cpus: 1,
        memory_mib: 512,
        uuid: "4c4c4544-0042-3010-8058-b7c04f503432".to_owned(),
        serial: "7CZ1234".to_owned(),
        disks: Vec::new(),
        nics: Vec::new(),
        extra: Vec::new(),
        detached: false,
    }
}

#[test]
fn a_network_boot_with_nothing_to_install_goes_on_to_the_target_images_login_prompt() -> Result<()> {
    let folder = folder("network-boot");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("disk.raw");
    target_image::build(System::SystemdBoot)?.unpack(&path)?;
    let server = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://10.0.2.2:{}", server.local_addr()?.port());
    // Read before the machine starts: the loader may have to be fetched first, and the firmware would not wait for
    // that.
    let loader = std::fs::read(firmware::network_boot_loader(Arch::X86_64)?)?;
    std::thread::spawn(move || server.incoming().flatten().for_each(|stream| drop(serve(stream, &loader))));

    let nics = vec![Nic { mac: "52:54:00:ab:cd:01".to_owned(), bootfile: Some(format!("{url}/boot/ipxe")) }];
    let disks = vec![Disk { path, serial: "target".to_owned() }];
    let boot = Boot::Uefi { uri: Some(format!("{url}/ipxe.efi")) };
    let mut machine = qemu::start(&MachineConfig { nics, disks, ..config(boot) }, &folder)?;
    let line = machine.wait_for_line("the script runs on", MINUTES)?;
    assert_eq!(line, "the script runs on 4c4c4544-0042-3010-8058-b7c04f503432 7CZ1234 52:54:00:ab:cd:01");
    machine.wait_for_console("Linux version", MINUTES)?;
    machine.wait_for_console("login:", MINUTES)?;

    // SysRq and "o" switch the machine off in any state.
    machine.send_break()?;
    machine.type_text("o")?;
    assert!(machine.wait_for_exit(MINUTES)?.success());
    Ok(())
}

#[test]
fn a_machine_that_cannot_start_says_why() -> Result<()> {
    let path = folder("nowhere").join("disk.raw");
    let disks = vec![Disk { path, serial: "gone".to_owned() }];
    let started = qemu::start(&MachineConfig { disks, ..config(Boot::Uefi { uri: None }) }, &folder("refused"));
    let error = format!("{:#}", started.err().context("it started")?);
    assert!(error.starts_with("starting QEMU: ") && error.contains("No such file or directory"), "{error}");
    Ok(())
}

/// Answers one request, for the boot loader or the script.
fn serve(mut stream: std::net::TcpStream, loader: &[u8]) -> Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = String::new();
    while request.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut body = b"#!ipxe\necho the script runs on ${uuid} ${serial} ${net0/mac}\nexit 1\n".to_vec();
    if first.contains("/ipxe.efi") {
        body = loader.to_vec();
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    if first.starts_with("GET") {
        stream.write_all(&body)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    std::io::copy(&mut stream.take(1 << 16), &mut std::io::sink())?;
    Ok(())
}
