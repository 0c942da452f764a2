//! `seed-cloud-init` where the root file system cannot be seeded, and where Ignition configures the system.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "../../crates/user-data/tests/cloud_init/packages.rs"]
mod packages;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, ROOT, can_mount, debugfs, make, read_file, run, unified};
use common::loop_device::{self, Loop};
use common::partitions::{cut_out, info, verify};
use common::{Bench, MIB};
use slipway_actions::Done;
use slipway_protocol::{Action, DiskHints, PhoneHome, SeedCloudInit, SeedPlace};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me";
const USER_DATA: &str = "#cloud-config\nhostname: x\n";
const SYSTEM: &[(&str, &str)] = &[("etc/os-release", "NAME=Debian"), ("usr/bin/cloud-init", "")];
const USR: &str = if cfg!(target_arch = "aarch64") {
    "B0E01050-EE5F-4390-949A-9101B17104E9"
} else {
    "8484680C-9521-48C6-9C11-B0720656F69E"
};
const ROOT_VERITY: &str = "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5";
const SIZE: usize = 60;
/// Start in MiB of a new partition on a disk of that size: at the end of the free space.
const NEW: usize = 55;

fn part<'a>(
    mib: std::ops::Range<usize>,
    type_guid: &'a str,
    name: &'a str,
    files: &'a [(&'a str, &'a str)],
) -> Part<'a> {
    Part { mib, type_guid, name, files }
}

fn bench(parts: &[Part]) -> Bench {
    let bench = Bench::new(MIB);
    make(&bench.path("disk"), SIZE, parts);
    bench
}

fn seed(seed: SeedPlace) -> SeedCloudInit {
    SeedCloudInit {
        seed,
        instance_id: "run-7".to_owned(),
        hostname: Some("node7".to_owned()),
        user_data: USER_DATA.to_owned(),
        ssh_keys: vec![KEY.to_owned()],
        ..SeedCloudInit::default()
    }
}

fn succeeds(bench: &Bench, inputs: SeedCloudInit) -> Done {
    bench.succeeds(&Action::SeedCloudInit(inputs)).0
}

/// The step fails with this message and leaves the disk unchanged.
fn is_refused(bench: &Bench, inputs: SeedCloudInit, expect: &str) {
    let before = bench.disk();
    is_refused_after_a_look(bench, inputs, expect);
    assert!(bench.disk() == before, "the disk is as it was: {expect}");
}

fn meta_data() -> String {
    format!("instance-id: \"run-7\"\nlocal-hostname: \"node7\"\npublic-keys:\n- \"{KEY}\"\n")
}

/// A file of the FAT file system at an offset in MiB, read by mtools.
fn fat_file(disk: &Path, mib: usize, name: &str) -> String {
    let image = format!("{}@@{}", disk.display(), mib * MIB);
    run(Command::new("mtype").args(["-i", &image, &format!("::{name}")]))
}

/// Checks that there is a seed at an offset in MiB, in a file system that fsck and blkid accept.
fn is_seeded(bench: &Bench, mib: usize, len: usize) {
    let disk = bench.path("disk");
    let cut = cut_out(bench, &disk, mib, len);
    run(Command::new("fsck.vfat").arg("-n").arg(&cut));
    for (key, value) in [("TYPE", "vfat"), ("LABEL", "CIDATA"), ("VERSION", "FAT12")] {
        let found = run(Command::new("blkid").args(["-p", "-o", "value", "-s", key]).arg(&cut));
        assert_eq!(found.trim(), value);
    }
    assert_eq!(fat_file(&disk, mib, "user-data"), USER_DATA);
    assert_eq!(fat_file(&disk, mib, "meta-data"), meta_data());
}

/// Sets the read-only attribute of a partition.
fn mark_read_only(disk: &Path, number: u32) {
    run(Command::new("sgdisk").arg(format!("--attributes={number}:set:60")).arg(disk));
}

fn put(bench: &Bench, mib: usize, bytes: &[u8]) {
    File::options().write(true).open(bench.path("disk")).unwrap().write_all_at(bytes, (mib * MIB) as u64).unwrap();
}

fn set_label(disk: &Path, mib: usize, label: &str) {
    run(Command::new("tune2fs").args(["-L", label]).arg(format!("{}?offset={}", disk.display(), mib * MIB)));
}

#[test]
fn a_root_that_is_not_to_be_written_to_stays_as_it_is_and_the_seed_gets_a_partition() {
    let true = can_mount() else { return };
    let bench = bench(&[part(1..9, ESP, "esp", &[]), part(10..40, ROOT, "system", SYSTEM)]);
    let disk = bench.path("disk");
    mark_read_only(&disk, 2);
    let before = bench.disk();
    is_refused(&bench, seed(SeedPlace::Root), "(system) of ");
    let network_config = Some("version: 2\n".to_owned());
    let done = succeeds(&bench, SeedCloudInit { network_config, ..seed(SeedPlace::Auto) });
    let expect = format!("seeded cloud-init in partition 3 (cidata) of {}", disk.display());
    assert_eq!(done.outcome.summary, expect);
    is_seeded(&bench, NEW, 4);
    assert_eq!(fat_file(&disk, NEW, "network-config"), "version: 2\n");
    assert!(bench.disk()[10 * MIB..40 * MIB] == before[10 * MIB..40 * MIB], "the root is as it was");
    verify(&disk);
    assert_eq!(info(&disk, 3, "Partition GUID code: "), LINUX);
    assert_eq!(info(&disk, 3, "First sector: "), (NEW * 2048).to_string());

    succeeds(&bench, SeedCloudInit { instance_id: "run-8".to_owned(), ..seed(SeedPlace::Auto) });
    let image = format!("{}@@{}", disk.display(), NEW * MIB);
    let listed = run(Command::new("mdir").args(["-b", "-i", &image]));
    assert_eq!(listed.trim(), "::/meta-data\n::/user-data", "the same partition, without what the seed before had");
    assert!(fat_file(&disk, NEW, "meta-data").starts_with("instance-id: \"run-8\"\n"));
}

#[test]
fn what_dm_verity_seals_is_not_even_mounted() {
    let true = can_mount() else { return };
    let bench =
        bench(&[part(1..9, ESP, "esp", &[]), part(10..40, ROOT, "system", SYSTEM), part(41..49, LINUX, "v", &[])]);
    let (data, hashes) = (bench.path("data"), bench.path("hashes"));
    std::fs::write(&data, &bench.disk()[10 * MIB..40 * MIB]).unwrap();
    std::fs::write(&hashes, vec![0; 8 * MIB]).unwrap();
    run(Command::new("veritysetup").arg("format").arg(&data).arg(&hashes));
    put(&bench, 41, &std::fs::read(&hashes).unwrap());
    let before = bench.disk();
    is_refused_after_a_look(&bench, seed(SeedPlace::Root), "it is sealed by dm-verity; set seed: cidata");
    succeeds(&bench, seed(SeedPlace::Auto));
    is_seeded(&bench, NEW, 4);
    assert!(bench.disk()[10 * MIB..49 * MIB] == before[10 * MIB..49 * MIB], "the sealed partition is as it was");
}

#[test]
fn the_type_of_a_partition_and_the_boot_entries_tell_of_a_seal_too() {
    let true = can_mount() else { return };
    let by_type = [part(10..40, ROOT, "system", SYSTEM), part(41..49, ROOT_VERITY, "v", &[])];
    is_refused(&bench(&by_type), seed(SeedPlace::Root), "sealed by dm-verity");
    let entry = |options: &'static str| [("loader/entries/a.conf", options)];
    let (sealed, usr) = (entry("linux /v\noptions ro roothash=0a1b\n"), entry("linux /v\noptions usrhash=0a1b\n"));
    let by_entry = |entry| [part(1..9, ESP, "esp", entry), part(10..40, ROOT, "system", SYSTEM)];
    let by_menu = [("EFI/debian/grub.cfg", "linux /v ro roothash=0a1b\n")];
    let by_block = [("EFI/debian/grubenv", "# GRUB Environment Block\nkernelopts=roothash=0a1b ro\n####")];
    let image = unified(&[(".linux", "kernel"), (".cmdline", "ro roothash=0a1b\0")]);
    let addon = unified(&[(".cmdline", "roothash=0a1b\0")]);
    let [by_image, by_start] = ["EFI/Linux/a.efi", "EFI/BOOT/BOOTX64.EFI"].map(|path| [(path, image.as_str())]);
    let by_addon = [("loader/addons/a.addon.efi", addon.as_str())];
    for entry in [&sealed, &by_menu, &by_block, &by_image, &by_start, &by_addon] {
        is_refused_after_a_look(&bench(&by_entry(entry)), seed(SeedPlace::Root), "sealed by dm-verity");
    }
    let done = succeeds(&bench(&by_entry(&usr)), seed(SeedPlace::Auto));
    assert!(done.outcome.summary.contains("partition 2 (system)"), "{}", done.outcome.summary);
}

#[test]
fn a_partition_with_usr_is_not_taken_for_a_root() {
    let true = can_mount() else { return };
    let bench = bench(&[part(1..9, ROOT, "system", &[]), part(10..40, USR, "usr", SYSTEM)]);
    let before = bench.disk();
    is_refused_after_a_look(&bench, seed(SeedPlace::Root), "partition 1 (system) of ");
    assert!(bench.disk()[10 * MIB..40 * MIB] == before[10 * MIB..40 * MIB], "it was not mounted");
}

#[test]
fn a_compressed_root_is_left_alone() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("os-release"), "NAME=x").unwrap();
    let image = tree.path().join("squashfs");
    run(Command::new("mksquashfs").arg(tree.path().join("os-release")).arg(&image).args(["-quiet", "-no-progress"]));
    for name in ["root-a", "firmware"] {
        let bench = bench(&[part(10..40, LINUX, name, &[])]);
        put(&bench, 10, &vec![0; MIB]);
        put(&bench, 10, &std::fs::read(&image).unwrap());
        let before = bench.disk();
        succeeds(&bench, seed(SeedPlace::Auto));
        is_seeded(&bench, NEW, 4);
        assert!(bench.disk()[10 * MIB..40 * MIB] == before[10 * MIB..40 * MIB], "{name} is as it was");
    }
}

#[test]
fn what_the_kernel_mounts_for_reading_only_is_seen_once_it_is_mounted() {
    let true = can_mount() else { return };
    let set_read_only = |bench: &Bench| _ = debugfs(&bench.path("disk"), 10, "feature read-only");
    let plain = bench(&[part(10..40, ROOT, "system", SYSTEM)]);
    set_read_only(&plain);
    is_refused(&plain, seed(SeedPlace::Root), "is read-only; set seed: cidata");
    succeeds(&plain, seed(SeedPlace::Auto));
    is_seeded(&plain, NEW, 4);

    let own = [SYSTEM, &[("var/lib/cloud/seed/nocloud/meta-data", "instance-id: old\n")]].concat();
    let own = bench(&[part(10..40, ROOT, "system", &own)]);
    set_read_only(&own);
    is_refused(&own, seed(SeedPlace::Auto), "has a seed of its own, whose instance-id would take precedence");
}

#[test]
fn without_room_for_a_partition_the_step_says_what_to_do() {
    let true = can_mount() else { return };
    let full = bench(&[part(1..57, ROOT, "system", SYSTEM)]);
    mark_read_only(&full.path("disk"), 1);
    let expect = "there is no partition with the label CIDATA, and no free 4 MiB between or after the others for one: \
                  add one to the image, or leave room after its last partition (stream-image with grow: false)";
    is_refused(&full, seed(SeedPlace::Auto), expect);
    let open = bench(&[part(1..57, ROOT, "system", SYSTEM)]);
    succeeds(&open, seed(SeedPlace::Root));
    is_refused_after_a_look(&open, seed(SeedPlace::Cidata), expect);
    let kept = read_file(&open.path("disk"), 1, "/var/lib/cloud/seed/nocloud/user-data");
    assert!(kept.is_some(), "nothing is taken away before there is another place");
    let damaged = bench(&[part(10..40, ROOT, "system", SYSTEM)]);
    mark_read_only(&damaged.path("disk"), 1);
    File::options().write(true).open(damaged.path("disk")).unwrap().write_all_at(b"x", 1024 + 60).unwrap();
    is_refused(&damaged, seed(SeedPlace::Auto), "its entries are damaged");
    let mbr = bench(&[part(10..40, ROOT, "system", SYSTEM)]);
    mark_read_only(&mbr.path("disk"), 1);
    put(&mbr, 0, &vec![0; MIB]);
    is_refused(&mbr, seed(SeedPlace::Auto), "adding to the partition table of ");
}

#[test]
fn an_old_seed_never_wins_over_the_new_one() {
    let true = can_mount() else { return };
    let old = |bench: &Bench, mib: usize, name: &str, label: &str| {
        let volume = bench.path(name);
        File::create(&volume).unwrap().set_len((3 * MIB) as u64).unwrap();
        run(Command::new("mkfs.vfat").args(["-n", label]).arg(&volume));
        let secret = bench.path("user-data");
        std::fs::write(&secret, "#!/bin/sh\necho secret of another run\n").unwrap();
        run(Command::new("mcopy").arg("-i").arg(&volume).arg(&secret).arg("::user-data"));
        put(bench, mib, &std::fs::read(&volume).unwrap());
    };
    let parts = [part(10..40, ROOT, "system", SYSTEM), part(41..44, LINUX, "a", &[]), part(45..48, LINUX, "b", &[])];
    let has_secret =
        |bench: &Bench| bench.disk()[41 * MIB..48 * MIB].windows(21).any(|bytes| bytes == b"secret of another run");
    let made = || {
        let bench = bench(&parts);
        old(&bench, 41, "old-a", "CIDATA");
        old(&bench, 45, "old-b", "cidata");
        assert!(has_secret(&bench));
        bench
    };
    let in_root = made();
    let (done, reports) = in_root.succeeds(&Action::SeedCloudInit(seed(SeedPlace::Auto)));
    assert!(done.outcome.summary.contains("partition 1 (system)"), "{}", done.outcome.summary);
    let taken = reports.notes.iter().filter(|note| note.starts_with("removed the old seed in partition")).count();
    assert_eq!(taken, 2, "{:?}", reports.notes);
    assert!(!has_secret(&in_root));
    let meta = read_file(&in_root.path("disk"), 10, "/var/lib/cloud/seed/nocloud/meta-data");
    assert_eq!(meta, Some((meta_data(), "0600 0:0".to_owned())));

    let beside = made();
    succeeds(&beside, seed(SeedPlace::Root));
    let done = succeeds(&beside, seed(SeedPlace::Cidata));
    assert!(done.outcome.summary.contains("(cidata)"), "{}", done.outcome.summary);
    let root = |path: &str| read_file(&beside.path("disk"), 10, path);
    assert_eq!(root("/var/lib/cloud/seed/nocloud/meta-data"), None, "its instance-id would count");
    assert!(root("/etc/cloud/cloud.cfg.d/99_slipway.cfg").is_some());

    let there = made();
    succeeds(&there, seed(SeedPlace::Cidata));
    is_seeded(&there, 41, 3);
    assert!(!has_secret(&there));
}

#[test]
fn a_partition_named_for_a_seed_is_used_and_one_with_another_file_system_is_not() {
    let true = can_mount() else { return };
    let parts =
        [part(10..40, ROOT, "system", SYSTEM), part(41..44, LINUX, "cidata", &[]), part(45..48, LINUX, "CIDATA", &[])];
    let bench = bench(&parts);
    put(&bench, 45, &vec![0; 3 * MIB]);
    let before = bench.disk();
    succeeds(&bench, seed(SeedPlace::Cidata));
    is_seeded(&bench, 45, 3);
    assert!(bench.disk()[41 * MIB..44 * MIB] == before[41 * MIB..44 * MIB], "ext4 is as it was");
}

#[test]
fn a_seed_that_another_file_system_would_hide_gets_a_partition() {
    let true = can_mount() else { return };
    let files = [SYSTEM, &[("etc/fstab", "UUID=a / ext4\nUUID=b /var ext4\n")]].concat();
    let bench = bench(&[part(10..40, ROOT, "system", &files)]);
    let expect = "its fstab mounts another file system on /var: UUID=b is not on this disk; set seed: cidata";
    is_refused_after_a_look(&bench, seed(SeedPlace::Root), expect);
    succeeds(&bench, seed(SeedPlace::Auto));
    is_seeded(&bench, NEW, 4);
}

/// The step fails with this message. The disk is not compared, because mounting changes a superblock.
fn is_refused_after_a_look(bench: &Bench, inputs: SeedCloudInit, expect: &str) {
    let refusal = bench.refusal(&Action::SeedCloudInit(inputs));
    assert!(refusal.contains(expect), "{refusal}");
}

#[test]
fn a_system_of_ostree_is_seeded_where_its_var_and_etc_are() {
    let true = can_mount() else { return };
    let files = [
        ("ostree/repo/config", ""),
        ("ostree/deploy/fedora/deploy/0a.0/etc/os-release", ""),
        ("ostree/deploy/fedora/deploy/0a.0/etc/cloud/cloud-init.disabled", ""),
        ("ostree/deploy/fedora/deploy/0a.0/usr/bin/cloud-init", ""),
        ("ostree/deploy/fedora/deploy/0a.0.origin", ""),
        ("ostree/deploy/fedora/var/lib/cloud/instance", "-> instances/old"),
        ("ostree/deploy/link", "-> fedora"),
    ];
    let bench = bench(&[part(10..40, LINUX, "root", &files)]);
    let done = succeeds(&bench, seed(SeedPlace::Auto));
    assert_eq!(done.outcome.warnings, [""; 0]);
    let found = |path: &str| read_file(&bench.path("disk"), 10, &format!("/ostree/deploy/fedora/{path}"));
    let secret = |content: &str| Some((content.to_owned(), "0600 0:0".to_owned()));
    assert_eq!(found("var/lib/cloud/seed/nocloud/user-data"), secret(USER_DATA));
    assert_eq!(found("var/lib/cloud/instance"), None);
    assert!(found("deploy/0a.0/etc/cloud/cloud.cfg.d/99_slipway.cfg").is_some());
    assert_eq!(found("deploy/0a.0/etc/cloud/cloud-init.disabled"), None);
}

#[test]
fn a_partition_is_added_on_blocks_of_4096_bytes_too() {
    let Some(_alone) = loop_device::alone() else { return };
    let mut bench = Bench::without_disks();
    let (backing, size) = (bench.path("disk"), SIZE * MIB);
    let device = Loop::new(&backing, 4096, size);
    run(Command::new("sgdisk").args(["--new=1:256:2560", "--change-name=1:data"]).arg(&device.0));
    bench.add_device(&device.0, size);
    let disk = DiskHints { device: Some(device.0.clone()), ..DiskHints::default() };
    succeeds(&bench, SeedCloudInit { disk, ..seed(SeedPlace::Cidata) });
    verify(&device.0);
    is_seeded(&bench, NEW, 4);
}

const CONFIG: &str = "{\"ignition\": {\"version\": \"3.4.0\"}}\n";

fn ignition() -> SeedCloudInit {
    SeedCloudInit { user_data: CONFIG.to_owned(), hostname: None, ssh_keys: Vec::new(), ..seed(SeedPlace::Auto) }
}

#[test]
fn a_system_of_coreos_gets_its_config_on_its_boot_partition() {
    let true = can_mount() else { return };
    let made = |boot: &[(&str, &str)]| {
        let bench = bench(&[part(1..9, LINUX, "", boot), part(10..40, ROOT, "root", &[("ostree/repo/config", "")])]);
        set_label(&bench.path("disk"), 1, "boot");
        bench
    };
    let new = made(&[("ignition.firstboot", ""), ("loader/entries/ostree-1.conf", "options $ignition_firstboot")]);
    is_refused_after_a_look(&new, seed(SeedPlace::Auto), "it is set up by Ignition: give an Ignition config");
    let done = succeeds(&new, ignition());
    assert_eq!(done.outcome.warnings, [""; 0]);
    let found = |bench: &Bench| read_file(&bench.path("disk"), 1, "/ignition/config.ign");
    assert_eq!(found(&new), Some((CONFIG.to_owned(), "0600 0:0".to_owned())));
    let url = "https://s.example/p/T".to_owned();
    let phone_home = Some(PhoneHome { url, tries: None });
    succeeds(&new, SeedCloudInit { phone_home, ssh_keys: vec![KEY.to_owned()], ..ignition() });
    let config = found(&new).unwrap().0;
    assert!(config.contains(KEY) && config.contains("slipway-phone-home.service"), "{config}");

    let used = made(&[("loader/entries/ostree-1.conf", "options $ignition_firstboot ro\n")]);
    let done = succeeds(&used, ignition());
    let warnings = done.outcome.warnings;
    assert!(warnings[0].contains("Ignition has already run and will not run again"), "{warnings:?}");
}

#[test]
fn a_system_of_flatcar_gets_its_config_on_its_oem_partition() {
    let true = can_mount() else { return };
    let bench =
        bench(&[part(1..9, LINUX, "USR-A", &[]), part(10..20, LINUX, "OEM", &[]), part(21..40, LINUX, "ROOT", &[])]);
    set_label(&bench.path("disk"), 10, "OEM");
    succeeds(&bench, ignition());
    let found = read_file(&bench.path("disk"), 10, "/config.ign");
    assert_eq!(found, Some((CONFIG.to_owned(), "0600 0:0".to_owned())));
}

#[test]
fn a_config_is_wrong_before_a_disk_is_looked_at_and_useless_where_nothing_reads_it() {
    let refused = |inputs, expect| is_refused_after_a_look(&Bench::without_disks(), inputs, expect);
    let cut = SeedCloudInit { user_data: "{\n\"ignition\": ".to_owned(), ..ignition() };
    refused(cut, "reading the Ignition config: line 2, column ");
    refused(SeedCloudInit { vendor_data: Some(String::new()), ..ignition() }, "which Ignition does not support");
    refused(SeedCloudInit { seed: SeedPlace::Root, ..ignition() }, "which cloud-init does not know");
    if can_mount() {
        let debian = bench(&[part(10..40, ROOT, "system", SYSTEM)]);
        is_refused(&debian, ignition(), "nothing on it reads an Ignition config");
    }
}

#[test]
fn cloud_init_reads_what_was_written_whatever_the_names_hold() {
    let true = can_mount() else { return };
    let bench = bench(&[part(10..40, ROOT, "system", SYSTEM)]);
    let (instance_id, hostname) = ("i: \"7\"\n- #\u{e4}\\".to_owned(), "*a: {b} # \u{85}\u{2028}%".to_owned());
    let ssh_keys = vec![KEY.to_owned(), format!("{KEY} \"at\": # home")];
    let network_config = Some("{\"version\": 2, \"ethernets\": {}}\n".to_owned());
    let inputs =
        SeedCloudInit { instance_id, hostname: Some(hostname), ssh_keys, network_config, ..seed(SeedPlace::Auto) };
    succeeds(&bench, inputs.clone());
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("seed/nocloud")).unwrap();
    for name in ["user-data", "meta-data", "network-config"] {
        let path = format!("/var/lib/cloud/seed/nocloud/{name}");
        let content = read_file(&bench.path("disk"), 10, &path).unwrap().0;
        std::fs::write(folder.path().join("seed/nocloud").join(name), content).unwrap();
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/no_cloud.py");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(program).arg(folder.path()).env("PYTHONPATH", packages::packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    let found: serde_json::Value = serde_json::from_str(&run(&mut python)).unwrap();
    let expect = serde_json::json!({
        "found": true, "instance_id": inputs.instance_id, "hostname": inputs.hostname, "keys": inputs.ssh_keys,
        "user_data": USER_DATA, "network": {"version": 2, "ethernets": {}},
    });
    assert_eq!(found, expect);
}
