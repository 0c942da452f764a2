//! A machine whose firmware starts from the network first installs Debian and changes its boot order in its EFI
//! variables. The entry of a former installation is removed, and the machine starts from its disk from then on. Another
//! machine starts the installed kernel by kexec, and the test prints how much sooner that kernel starts.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base16ct::lower::encode_string as hex;
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, UUID, step, stream, timed};
use serde_json::{Value, json};
use slipway_parts::Arch;
use slipway_protocol::{Action, EfiBootOrder, Kexec, NodeState, Reboot, Step};
use xtask::host::command::{command, run_quietly};
use xtask::host::python;
use xtask::lab::qemu::firmware::Release;
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig, Nic, create_disk, firmware};
use xtask::lab::target_image::System;

/// The entry that virt-fw-vars makes for a URI.
const NETWORK: u16 = 0x0099;
/// The entry of the former installation.
const FORMER: u16 = 0x0042;
/// GUID of the former installation's partition, as text and as in a device path, and start and size of the partition in
/// blocks.
const FORMER_GUID: &str = "0c2f1f6e-5d4b-4c7a-9b1e-7d3a52f0c611";
const FORMER_GUID_BYTES: [u8; 16] = *b"\x6e\x1f\x2f\x0c\x4b\x5d\x7a\x4c\x9b\x1e\x7d\x3a\x52\xf0\xc6\x11";
const FORMER_BLOCKS: [u64; 2] = [2048, 2048];
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const DISK_SIZE: u64 = 2 << 30;
/// The greeting of the firmware's network boot loader.
const NETWORK_BOOT: &str = "iPXE initialising devices";

#[test]
fn the_firmware_starts_what_was_installed_and_keeps_its_network_entries() -> Result<()> {
    timed("the firmware starts what was installed and keeps its network entries", || {
        let bench = Bench::new()?;
        bench.register()?;
        let reboot = [
            step("order", Action::EfiBootOrder(EfiBootOrder::default())),
            step("leave", Action::Reboot(Reboot::default())),
        ];
        let by_firmware = leave(&bench, "rebooted", &reboot, "restarting")?;
        let variables = read_variables(&bench.folder().join("rebooted"))?;
        let order = content(&variables, "BootOrder").context("BootOrder")?;
        let (own, others) = order.split_at(4);
        let own = u16::from_str_radix(own, 16)?.swap_bytes();
        let loader: String = "\\EFI\\systemd\\".encode_utf16().map(|unit| hex(&unit.to_le_bytes())).collect();
        let entry = |number: u16| content(&variables, &format!("Boot{number:04X}"));
        assert!(entry(own).is_some_and(|own| own.contains(&loader)), "{variables}");
        assert!(others.contains(&hex(&NETWORK.to_le_bytes())) && entry(NETWORK).is_some(), "{variables}");
        assert!(!others.contains(&hex(&FORMER.to_le_bytes())) && entry(FORMER).is_none(), "{variables}");

        let kexec = [step("leave", Action::Kexec(Kexec::default()))];
        let by_kexec = leave(&bench, "kexeced", &kexec, "starting the loaded kernel")?;
        let (slow, fast) = (by_firmware.as_secs_f64(), by_kexec.as_secs_f64());
        writeln!(
            std::io::stderr(),
            "from PID 1's last word to the installed kernel: reboot {slow:.1} s, kexec {fast:.1} s"
        )?;
        Ok(())
    })
}

/// Installs Debian on a machine that starts from the network first, and leaves slipway with `steps`. Returns the time
/// from the last word of PID 1 to the first word of the installed kernel.
fn leave(bench: &Bench, name: &str, steps: &[Step], last_word: &str) -> Result<Duration> {
    let (url, digest) = bench.add_system(System::SystemdBoot)?;
    bench.start_run(&[&[stream("system", &url, digest)], steps].concat())?;

    let folder = bench.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    make_variables(&folder, &bench.lab.loader_url())?;
    let disk = folder.join("disk");
    create_disk(&disk, DISK_SIZE)?;
    let [first, blocks] = FORMER_BLOCKS;
    let (new, guid) = (format!("--new=1:{first}:+{}", blocks - 1), format!("--partition-guid=1:{FORMER_GUID}"));
    run_quietly(command("sgdisk", [new.as_str(), "--typecode=1:ef00", &guid]).arg(&disk))?;
    let config = MachineConfig {
        boot: Boot::Uefi { uri: None },
        uuid: UUID.to_owned(),
        disks: vec![Disk { path: disk, serial: DISK_SERIAL.to_owned() }],
        nics: vec![Nic { mac: "52:54:00:7d:2f:02".to_owned(), bootfile: Some(bench.lab.script_url()) }],
        ..bench.machine()
    };
    let mut machine = qemu::start(&config, &folder)?;
    machine.wait_for_console(last_word, 3 * LIMIT)?;
    let left = Instant::now();
    machine.wait_for_console("Linux version", LIMIT)?;
    let took = left.elapsed();
    // This is on the command line in the image's boot entry.
    machine.wait_for_console("root=LABEL=root", LIMIT)?;
    // If the boot order is unchanged, this shows that the firmware was bypassed, because it would have started from the
    // network again.
    assert_eq!(machine.console()?.matches(NETWORK_BOOT).count(), 1, "the network was started from twice");
    let node = bench.wait_for(&machine, "installed", |node| node.state == NodeState::Installed)?;
    let outcomes: Vec<_> = node.run.context("a run")?.steps.into_iter().filter_map(|step| step.outcome).collect();
    assert!(outcomes.iter().all(|outcome| outcome.warnings.is_empty()), "{outcomes:#?}");
    // The firmware could also have removed the entry, so the report of the step is checked.
    let ordered = steps.iter().any(|step| matches!(step.action, Action::EfiBootOrder(_)));
    let removed = outcomes.iter().any(|outcome| outcome.summary.ends_with("; removed 1 of former installations"));
    assert_eq!(removed, ordered, "{outcomes:#?}");
    Ok(took)
}

/// Makes variables with which a machine always tries a URI first, and then a former installation.
fn make_variables(folder: &Path, uri: &str) -> Result<()> {
    let variables = folder.join("vars.fd");
    firmware::variables(&variables, Arch::X86_64, Release::Host, Some(uri))?;
    let variable = |name: &str, data: &[u8]| json!({ "name": name, "guid": GLOBAL, "attr": 7, "data": hex(data) });
    let order = variable("BootOrder", &[NETWORK, FORMER].map(u16::to_le_bytes).concat());
    let former = variable(&format!("Boot{FORMER:04X}"), &former_entry());
    let file = folder.join("order.json");
    std::fs::write(&file, json!({ "version": 2, "variables": [order, former] }).to_string())?;
    let tools = python::environment(python::FIRMWARE)?;
    let mut change = command(tools.join("virt-fw-vars"), ["--delete", "BootNext", "--set-json"]);
    run_quietly(change.arg(&file).arg("--inplace").arg(&variables))
}

/// Makes an active load option with a description and the path of a program on a partition (UEFI specification 2.10,
/// 3.1.3 and 10.3).
fn former_entry() -> Vec<u8> {
    let text = |text: &str| -> Vec<u8> { text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect() };
    let node = |kind: [u8; 2], data: &[u8]| [&kind, &(4 + data.len() as u16).to_le_bytes()[..], data].concat();
    let blocks = FORMER_BLOCKS.map(u64::to_le_bytes).concat();
    // Partition 1 of a GPT, identified by its GUID.
    let drive = [&1_u32.to_le_bytes(), blocks.as_slice(), &FORMER_GUID_BYTES, &[2, 2]].concat();
    let path = [node([4, 1], &drive), node([4, 4], &text("\\EFI\\old\\old.efi")), node([0x7f, 0xff], &[])].concat();
    [&1_u32.to_le_bytes(), &(path.len() as u16).to_le_bytes()[..], &text("former"), &path].concat()
}

/// Reads the variables of a machine that was switched off, as JSON.
fn read_variables(folder: &Path) -> Result<Value> {
    let file = folder.join("found.json");
    let tools = python::environment(python::FIRMWARE)?;
    let mut print = command(tools.join("virt-fw-vars"), ["--output-json"]);
    run_quietly(print.arg(&file).arg("--input").arg(folder.join("vars.fd")))?;
    Ok(serde_json::from_slice(&std::fs::read(&file)?)?)
}

/// Returns the content of a variable in hexadecimal.
fn content<'a>(variables: &'a Value, name: &str) -> Option<&'a str> {
    let mut all = variables["variables"].as_array()?.iter();
    all.find(|variable| variable["name"] == name)?["data"].as_str()
}
