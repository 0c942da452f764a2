//! `encrypt-root` when it refuses: the disk is unchanged.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use slipway_actions::{Done, Error};
use slipway_protocol::{Action, DiskHints, EncryptRoot};

use common::disk_image::{
    ESP, LINUX, Part, ROOT, can_mount, debugfs, make, read_file, run as succeed, spoil, write_file,
};
use common::encryptable::SYSTEM;
use common::swtpm::Tpm;
use common::{Bench, MIB, chain};

const ESP_AT: usize = 1;
const DATA_AT: usize = 10;
const ROOT_AT: usize = 20;
/// The EFI variable that a system sees when shim started it.
const BY_SHIM: &str = "SbatLevelRT-605dab50-e046-4300-abb6-3dd810dd8b23";
const NO_TPM: &str = "/dev/no-tpm";
/// The refusal when the missing TPM is the only obstacle.
const NO_OBSTACLE: &str = "/dev/no-tpm does not exist";
/// An entry as kernel-install writes it.
const ENTRY: (&str, &str) =
    ("loader/entries/a.conf", "linux /id/6.1/linux\ninitrd /id/6.1/initrd\noptions root=x ro\n");
/// Rebuilds the files of such entries.
const HOOK: (&str, &str) = ("etc/kernel/postinst.d/zz-systemd-boot", "");
/// Makes the EFI system partition the one with the kernels.
const FSTAB: (&str, &str) = ("etc/fstab", "PARTLABEL=esp /boot ext4 defaults 0 2\n");

/// A machine without a TPM.
fn bench() -> Bench {
    let mut bench = Bench::new(MIB);
    bench.setup.tpm = NO_TPM.into();
    bench
}

fn encrypt(bench: &Bench) -> Result<Done, Error> {
    bench.run(&Action::EncryptRoot(EncryptRoot::default())).0
}

/// Checks the refusal. The disk is unchanged, and no key was made.
#[track_caller]
fn refused(bench: &Bench, inputs: EncryptRoot, expect: &str) {
    let before = state(bench);
    let refusal = bench.refusal(&Action::EncryptRoot(inputs));
    assert!(refusal.contains(expect), "{expect:?} is not in {refusal}");
    assert_eq!(state(bench), before, "{refusal}");
    assert_eq!(bench.keys.lock().unwrap().len(), 0);
}

/// The partition table, and the configuration files that would be changed.
fn state(bench: &Bench) -> (Vec<u8>, [Option<(String, String)>; 3]) {
    let disk = bench.path("disk");
    let mut head = vec![0; MIB];
    fs::File::open(&disk).unwrap().read_exact_at(&mut head, 0).unwrap();
    let files = ["/etc/crypttab", "/etc/fstab", "/etc/dracut.conf.d/50-slipway-encrypt-root.conf"];
    (head, files.map(|file| read_file(&disk, ROOT_AT, file)))
}

/// A disk with a system, and this much room behind its root file system.
fn installed(files: &[(&str, &str)], room: usize) -> Bench {
    let bench = with_esp(&[ENTRY], &[files, &[HOOK]].concat(), room);
    make_executable(&bench, HOOK.0);
    bench
}

fn make_executable(bench: &Bench, path: &str) {
    debugfs(&bench.path("disk"), ROOT_AT, &format!("sif {path} mode 0100755"));
}

fn with_esp(esp: &[(&str, &str)], files: &[(&str, &str)], room: usize) -> Bench {
    let bench = bench();
    let disk = bench.path("disk");
    let parts = [
        Part { mib: ESP_AT..9, type_guid: ESP, name: "esp", files: esp },
        Part { mib: DATA_AT..19, type_guid: LINUX, name: "data", files: &[("data", "")] },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files },
    ];
    make(&disk, 40, &parts);
    let file = fs::File::options().write(true).open(&disk).unwrap();
    file.set_len(((40 + room) * MIB) as u64).unwrap();
    bench
}

#[test]
fn what_cannot_be_encrypted_is_refused_before_anything_is_changed() {
    let true = can_mount() else { return };
    let check = |files: &[(&str, &str)], room: usize, inputs: EncryptRoot, expect: &str| {
        refused(&installed(files, room), inputs, expect);
    };
    let usual = EncryptRoot::default;
    for (index, (path, _)) in SYSTEM.iter().enumerate().filter(|(_, (path, _))| path.starts_with("usr/")) {
        let without = [&SYSTEM[..index], &SYSTEM[index + 1..]].concat();
        check(&without, 40, usual(), &format!("its system has no /{path} (Debian's package "));
    }
    let grub = [SYSTEM, &[("boot/grub/grub.cfg", "linux /boot/vmlinuz\n")]].concat();
    check(&grub, 40, usual(), "its boot loader reads /boot/grub/grub.cfg from it");
    let full = "its ext4 file system takes up 19 MiB of 19 MiB, but 16 MiB must be free after it; write the image with \
                `grow: false`";
    check(SYSTEM, 40, EncryptRoot { grow: false, ..usual() }, full);
    check(SYSTEM, 10, usual(), "must be free after it");
    let no_tpm = "sealing the key of the root file system: /dev/no-tpm does not exist; switch on the TPM";
    check(SYSTEM, 40, usual(), no_tpm);
    check(SYSTEM, 40, EncryptRoot { pcrs: vec![24], ..usual() }, "it binds the key to PCR 24, but PCRs are 0 to 23");
}

#[test]
fn a_root_that_is_not_made_larger_says_why() {
    let true = can_mount() else { return };
    let bench = bench();
    let parts = [
        Part { mib: 1..ROOT_AT, type_guid: ROOT, name: "other", files: &[] },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: SYSTEM },
    ];
    make(&bench.path("disk"), 40, &parts);
    let disk = fs::File::options().write(true).open(bench.path("disk")).unwrap();
    disk.set_len(80 * MIB as u64).unwrap();
    refused(&bench, EncryptRoot::default(), "was not grown: it is one of a pair of partitions");
}

#[test]
fn a_copy_of_the_initramfs_that_nothing_makes_anew_is_refused() {
    let true = can_mount() else { return };
    let check = |root: &[(&str, &str)], expect: &str| {
        refused(&with_esp(&[ENTRY], root, 40), EncryptRoot::default(), expect);
    };
    check(SYSTEM, "its boot entry /loader/entries/a.conf starts /id/6.1/initrd, a copy that nothing rebuilds");
    check(&[SYSTEM, &[HOOK]].concat(), "a copy that nothing rebuilds");

    let check = |entry: &str, missing: &str, expect: &str| {
        let system: Vec<_> = SYSTEM.iter().chain([&HOOK]).filter(|(path, _)| *path != missing).copied().collect();
        let bench = with_esp(&[("loader/entries/a.conf", entry)], &system, 40);
        make_executable(&bench, HOOK.0);
        refused(&bench, EncryptRoot::default(), expect);
    };
    check(ENTRY.1, "", NO_OBSTACLE);
    for missing in ["boot/initrd.img-6.1", "boot/vmlinuz-6.1", "lib/modules/6.1/modules.dep"] {
        check(ENTRY.1, missing, "starts /id/6.1/initrd, a copy that nothing rebuilds");
    }
    check(&ENTRY.1.replace("6.1", "5.0"), "", "starts /id/5.0/initrd, a copy that nothing rebuilds");
    let gone = "linux /id/5.0/linux\ninitrd /id/5.0/initrd.img-5.0\n";
    check(gone, "", "which nothing rebuilds, because its system has no /lib/modules/5.0/modules.dep");
}

#[test]
fn what_a_boot_entry_starts_must_have_an_initramfs_that_is_made_anew() {
    let true = can_mount() else { return };
    let check = |esp: &[(&str, &str)], entry: &str, root: &[(&str, &str)], expect: &str| {
        let usual = [("loader/entries/a.conf", entry), ("initrd.img-6.1", "")];
        let bench = with_esp(&[esp, &usual].concat(), &[SYSTEM, root].concat(), 40);
        refused(&bench, EncryptRoot::default(), expect);
    };
    let copy = "starts /id/6.1/initrd, a copy that nothing rebuilds";
    check(&[], "efi /id/6.1/linux\ninitrd /id/6.1/initrd\n", &[FSTAB], copy);
    check(&[], "uki /id/6.1.efi\noptions root=x\n", &[FSTAB], "starts /id/6.1.efi, which contains its initramfs");
    check(&[], "linux /vmlinuz-6.1\noptions root=x\n", &[FSTAB], "starts /vmlinuz-6.1 and has no initramfs");
    let in_boot = "linux /vmlinuz-6.1\ninitrd /initrd.img-6.1\noptions root=x\n";
    check(&[], in_boot, &[("boot/initrd.img-6.1", "")], "starts /initrd.img-6.1, a copy that nothing rebuilds");
    check(&[], in_boot, &[FSTAB], NO_OBSTACLE);
    let other = in_boot.replace("initrd.img-6.1", "initramfs-6.1.img");
    check(&[], &other, &[FSTAB], "starts /initramfs-6.1.img, a copy that nothing rebuilds");
    let gone = "linux /vmlinuz-5.0\ninitrd /initramfs-5.0.img\noptions root=x\n";
    let expect =
        "starts /initramfs-5.0.img, which nothing rebuilds, because its system has no /lib/modules/5.0/modules.dep";
    check(&[("initramfs-5.0.img", "")], gone, &[FSTAB], expect);
    let for_rescue = ("loader/entries/b.conf", "linux /vmlinuz-0-rescue-a\ninitrd /initramfs-0-rescue-a.img\n");
    check(&[for_rescue, ("initramfs-0-rescue-a.img", "")], in_boot, &[FSTAB], NO_OBSTACLE);
    let program = ("loader/entries/b.conf", "efi /shell.efi\noptions -nostartup\n");
    check(&[program], in_boot, &[FSTAB], NO_OBSTACLE);

    // A program with one section (PE Format, "COFF File Header" and "Section Table").
    let image = format!("MZ{}@\0\0\0PE\0\0d\0\u{1}\0{}.linux{}", "\0".repeat(58), "\0".repeat(16), "\0".repeat(34));
    let unified = [("id/6.1.efi", image.as_str())];
    check(&unified, "efi /id/6.1.efi\noptions root=x\n", &[FSTAB], "starts /id/6.1.efi, which contains its initramfs");
    let unified = [("EFI/Linux/a.efi", image.as_str())];
    check(&unified, in_boot, &[FSTAB], "its kernel image /EFI/Linux/a.efi contains its initramfs");

    let by_link = "linux /vmlinuz-6.1\ninitrd /initrd.img\noptions root=x\n";
    let link = |to| [("initrd.img", to), ("id/initrd", "")];
    check(&link("-> initrd.img-6.1"), by_link, &[FSTAB], NO_OBSTACLE);
    check(&link("-> id/initrd"), by_link, &[FSTAB], "starts /initrd.img, a copy that nothing rebuilds");
}

#[test]
fn a_boot_folder_without_an_image_that_can_be_made_anew_is_refused() {
    let true = can_mount() else { return };
    let menu = ("grub/grub.cfg", "menuentry 'a' {\n\tlinux /vmlinuz root=x\n}\n");
    let check = |image: &str, root: &[(&str, &str)], expect: &str| {
        let bench = with_esp(&[menu, (image, "")], &[SYSTEM, root].concat(), 40);
        refused(&bench, EncryptRoot::default(), expect);
    };
    let none = "its /boot has no initrd.img-VERSION, initramfs-VERSION.img or initrd-VERSION of a kernel";
    for image in ["initrd.img-6.1", "initramfs-6.1.img", "initrd-6.1"] {
        check(image, &[FSTAB], NO_OBSTACLE);
    }
    for image in ["initramfs-linux.img", "initrd.img-6.2", "initramfs-6.1", "initrd.img", "id/initrd.img-6.1"] {
        check(image, &[FSTAB], none);
    }
    check("initrd.img-6.2", &[FSTAB, ("lib/modules/6.2/modules.dep", "")], NO_OBSTACLE);
    check("initrd.img-6.2", &[FSTAB, ("lib/modules/6.2/kernel", "")], none);
    check("initrd.img-", &[FSTAB, ("lib/modules/modules.dep", "")], none);
    check("initrd.img-..", &[FSTAB, ("lib/modules.dep", "")], none);
    check(
        "initramfs-5.14.0-9.el9.x86_64.img",
        &[FSTAB, ("lib/modules/5.14.0-9.el9.x86_64/modules.dep", "")],
        NO_OBSTACLE,
    );
    let by_link = ("etc/fstab", "/dev/disk/by-partlabel/esp /boot ext4 defaults 0 2\n");
    check("initrd.img-6.2", &[by_link], none);
    check("initrd.img-6.1", &[by_link], NO_OBSTACLE);
    // The root's own /boot has an initramfs that fits.
    check("initrd.img-6.2", &[], NO_OBSTACLE);
    check("initrd.img-6.2", &[("etc/fstab", "PARTLABEL=esp /boot/efi ext4 defaults 0 2\n")], NO_OBSTACLE);
}

#[test]
fn what_cannot_be_told_the_boot_loader_is_refused_before_anything_is_changed() {
    let true = can_mount() else { return };
    let conditional = "[ -n \"$X\" ] && GRUB_CMDLINE_LINUX=\"a\"\n";
    let bench = installed(&[SYSTEM, &[("etc/default/grub", conditional)]].concat(), 40);
    let expect = "editing /etc/default/grub of the installed system: line 1: GRUB_CMDLINE_LINUX is set inside or after";
    refused(&bench, EncryptRoot::default(), expect);
    let bench = with_esp(&[("x", "")], SYSTEM, 40);
    refused(&bench, EncryptRoot::default(), "looking for a boot loader's configuration on ");
}

#[test]
fn a_partition_that_does_not_mount_is_an_obstacle_where_the_boot_loader_may_read_it() {
    let true = can_mount() else { return };
    let check = |root: &[(&str, &str)], spoiled: usize, expect: &str| {
        let bench = installed(&[SYSTEM, root].concat(), 40);
        spoil(&bench.path("disk"), spoiled);
        refused(&bench, EncryptRoot::default(), expect);
    };
    check(&[], ESP_AT, "partition 1 (esp) of ");
    check(&[], ESP_AT, "; the boot loader may read from there");
    check(&[], DATA_AT, NO_OBSTACLE);
    let fstab = ("etc/fstab", "PARTLABEL=data /boot ext4 defaults 0 2\n");
    check(&[fstab], DATA_AT, "; the boot loader may read from there");
}

/// No program of this system can run, so the action fails where it should run them.
#[test]
fn entries_for_recovery_get_the_arguments_too() {
    let true = can_mount() else { return };
    let menu = "menuentry 'a' {\n\tlinux /vmlinuz-6.1 root=x ro quiet\n}\n\
                menuentry 'a (recovery mode)' {\n\tlinux /vmlinuz-6.1 root=x ro single\n}\n";
    let mut bench = with_esp(&[("grub/grub.cfg", menu)], SYSTEM, 40);
    bench.disks.clear();
    let device = Some(bench.place("disk"));
    let inputs = EncryptRoot { disk: DiskHints { device, ..DiskHints::default() }, ..EncryptRoot::default() };
    let Some(tpm) = Tpm::start(&bench.path("tpm")) else { return };
    bench.setup.tpm.clone_from(&tpm.device);
    bench.takes_keys = true;
    let error = bench.refusal(&Action::EncryptRoot(inputs));
    assert!(error.contains("running the script in the installed system"), "{error}");
    assert!(error.ends_with("install it again"), "{error}");
    let volume = bench.keys.lock().unwrap()[0].volume.clone();
    let edited = read_file(&bench.path("disk"), ESP_AT, "/grub/grub.cfg").unwrap().0;
    let arguments =
        format!(" rd.luks.name={volume}=root rd.luks.options={volume}=tpm2-device=auto root=/dev/mapper/root");
    let lines: Vec<&str> = edited.lines().filter(|line| line.contains("vmlinuz")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.ends_with(&arguments)), "{edited}");
}

#[test]
fn a_register_that_shim_changes_between_the_two_is_refused() {
    let true = can_mount() else { return };
    let variables = |by_shim: bool| if by_shim { vec!["BootOrder-x", BY_SHIM] } else { vec!["BootOrder-x"] };
    let check = |esp: &[(&str, &str)], variables: &[&str], pcrs: &[u32], expect: &str| {
        let bench = with_esp(&[&[ENTRY][..], esp].concat(), &[SYSTEM, &[HOOK]].concat(), 40);
        make_executable(&bench, HOOK.0);
        let folder = bench.path("efi/efivars");
        for name in variables {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), [6, 0, 0, 0]).unwrap();
        }
        refused(&bench, EncryptRoot { pcrs: pcrs.to_vec(), ..EncryptRoot::default() }, expect);
    };
    let shim = [("EFI/debian/SHIMX64.EFI", ""), ("EFI/debian/grubx64.efi", "")];
    let slipway_was_not = "the installed system is started by shim, which measures into PCR 7, but slipway was not";
    let slipway_was = "slipway was started by shim, which measures into PCR 7, but the installed system is not";
    check(&shim, &variables(false), &[0, 7], slipway_was_not);
    check(&[], &variables(true), &[7], slipway_was);
    check(&shim, &variables(true), &[7], NO_OBSTACLE);
    check(&shim, &variables(false), &[0], NO_OBSTACLE);
    check(&shim[..1], &variables(false), &[7], NO_OBSTACLE);
    let removable = [("EFI/BOOT/BOOTX64.EFI", ""), ("EFI/BOOT/grubx64.efi", ""), ("EFI/BOOT/mmx64.efi", "")];
    check(&removable, &variables(false), &[7], slipway_was_not);
    check(&removable[..2], &variables(false), &[7], NO_OBSTACLE);
    // Booted without UEFI.
    check(&shim, &[], &[7], NO_OBSTACLE);
}

#[test]
fn a_partition_inside_the_root_is_not_overwritten() {
    let true = can_mount() else { return };
    let bench = installed(SYSTEM, 40);
    let disk = bench.path("disk");
    succeed(Command::new("sgdisk").arg("--zap").arg(&disk));
    let table = "label: dos\nstart=20MiB, size=50MiB, type=83\nstart=72MiB, size=5MiB, type=83\n";
    let command = "printf \"$1\" | sfdisk -q --wipe never \"$0\"";
    succeed(Command::new("sh").args(["-c", command, disk.to_str().unwrap(), table]));
    // First block of the second record (UEFI specification, tables 5-1 and 5-2).
    let start = (60 * MIB as u32 / 512).to_le_bytes();
    fs::File::options().write(true).open(&disk).unwrap().write_all_at(&start, 446 + 16 + 8).unwrap();
    let error = encrypt(&bench).unwrap_err();
    assert!(chain(&error).contains("partition 2 of "), "{}", chain(&error));
    assert!(chain(&error).ends_with("overlaps it; make the image again"), "{}", chain(&error));
}

#[test]
fn a_key_that_is_not_stored_leaves_the_disk_as_it_was() {
    let true = can_mount() else { return };
    let mut bench = installed(SYSTEM, 40);
    let Some(tpm) = Tpm::start(&bench.path("tpm")) else { return };
    bench.setup.tpm.clone_from(&tpm.device);
    let before = state(&bench);
    let error = encrypt(&bench).unwrap_err();
    assert_eq!(chain(&error), "storing the recovery key; the disk was not changed: the line was cut");
    assert!(slipway_actions::is_transient(&error));
    assert_eq!(state(&bench), before);
    let keys = bench.keys.lock().unwrap();
    assert_eq!(keys.iter().map(|key| (key.volume.len(), key.key.reveal().len())).collect::<Vec<_>>(), [(36, 71)]);
}

#[test]
fn a_disk_without_a_table_is_no_root_partition() {
    let true = can_mount() else { return };
    let bench = bench();
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("etc")).unwrap();
    for (path, content) in SYSTEM {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let mut mkfs = Command::new("mkfs.ext4");
    succeed(mkfs.args(["-q", "-F", "-d"]).arg(&tree).arg(bench.path("disk")).arg("40M"));
    let error = encrypt(&bench).unwrap_err();
    assert!(chain(&error).contains("only a partition can be encrypted"), "{}", chain(&error));
}

/// A disk whose last partition is sealed by dm-verity, with the hashes behind it, and a partition of another type
/// before it for boot entries.
fn sealed(halves: bool, first: &str) -> Option<(Bench, String)> {
    const HASHES: &str = if cfg!(target_arch = "aarch64") {
        "DF3300CE-D69F-4C92-978C-9BFB0F38D820"
    } else {
        "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5"
    };
    let bench = bench();
    let disk = bench.path("disk");
    let parts = [
        Part { mib: ESP_AT..9, type_guid: first, name: "other", files: &[("loader/entries/readme", "")] },
        Part { mib: 10..30, type_guid: ROOT, name: "system", files: &[("etc/os-release", "")] },
        Part { mib: 30..39, type_guid: HASHES, name: "hashes", files: &[] },
    ];
    make(&disk, 40, &parts);
    let (data, hashes) = (bench.path("data"), bench.path("hashes"));
    let file = fs::File::options().read(true).write(true).open(&disk).unwrap();
    let mut bytes = vec![0; 20 * MIB];
    file.read_exact_at(&mut bytes, 10 * MIB as u64).unwrap();
    fs::write(&data, &bytes).unwrap();
    let made = Command::new("veritysetup").arg("format").arg(&data).arg(&hashes).output().ok()?;
    let text = String::from_utf8(made.stdout).unwrap();
    let root_hash = text.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim().to_owned();
    let mut padded = fs::read(&hashes).unwrap();
    padded.resize(9 * MIB, 0);
    file.write_all_at(&padded, 30 * MIB as u64).unwrap();
    if halves {
        let guid = |hex: &str| [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        let mut sgdisk = Command::new("sgdisk");
        sgdisk.arg(format!("--partition-guid=2:{}", guid(&root_hash[..32])));
        succeed(sgdisk.arg(format!("--partition-guid=3:{}", guid(&root_hash[32..]))).arg(&disk));
    }
    Some((bench, root_hash))
}

#[test]
fn a_sealed_root_is_left_as_it_is_and_checked() {
    for halves in [true, false] {
        let Some((bench, root_hash)) = sealed(halves, LINUX) else { return };
        let before = bench.disk();
        let (done, reports) = bench.succeeds(&Action::EncryptRoot(EncryptRoot::default()));
        let left = format!("left partition 2 (system) of {} as it is: sealed", bench.path("disk").display());
        assert!(done.outcome.summary.starts_with(&left), "{}", done.outcome.summary);
        let told = if halves { &reports.notes[1] } else { &done.outcome.warnings[0] };
        assert!(told.contains(&root_hash), "{told}");
        assert_eq!(done.outcome.warnings.len(), usize::from(!halves), "{:?}", done.outcome.warnings);
        assert!(bench.disk() == before);

        let disk = fs::File::options().write(true).open(bench.path("disk")).unwrap();
        disk.write_all_at(&[0xFF], (29 * MIB + 5) as u64).unwrap();
        let error = chain(&encrypt(&bench).unwrap_err());
        let expect = "sealed by dm-verity: block 4864 of its data does not match its hash tree; write the image again";
        assert!(error.ends_with(expect), "{error}");
    }
}

#[test]
fn a_sealed_root_has_to_be_the_one_that_boot_entries_start() {
    let true = can_mount() else { return };
    for halves in [true, false] {
        for is_right in [true, false] {
            let Some((bench, root_hash)) = sealed(halves, ESP) else { return };
            let (entry, zeros) = (bench.path("entry"), "0".repeat(64));
            let named = if is_right { &root_hash } else { &zeros };
            fs::write(&entry, format!("linux /v\noptions ro roothash={named}\n")).unwrap();
            write_file(&bench.path("disk"), ESP_AT, &entry, "/loader/entries/a.conf");
            let ended = encrypt(&bench);
            match is_right {
                true => assert_eq!(ended.unwrap().outcome.warnings, [""; 0]),
                false => {
                    let error = chain(&ended.unwrap_err());
                    let expect = format!("its root hash is {root_hash}, but the boot entries name {zeros}; write");
                    assert!(error.contains(&expect), "{error}");
                }
            }
        }
    }
}
