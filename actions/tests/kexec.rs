//! `kexec` on disks with images of every kind: what would be started.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, ROOT, can_mount, make, run, spoil, unified};
use common::{Bench, MIB};
use slipway_actions::Next;
use slipway_protocol::{Action, Kexec};

const BOOT_AT: usize = 10;
const ROOT_AT: usize = 20;
const OS_RELEASE: (&str, &str) = ("etc/os-release", "NAME=Debian\nID=debian\nVERSION_ID=12\n");

type Files<'a> = &'a [(&'a str, &'a str)];

fn installed(esp: Files, boot: Files, root: Files) -> Bench {
    let bench = Bench::new(MIB);
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: esp },
        Part { mib: BOOT_AT..19, type_guid: LINUX, name: "boot", files: boot },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: root },
    ];
    make(&bench.path("disk"), 40, &parts);
    bench
}

fn check(bench: &Bench, inputs: Kexec, expect: (&str, Option<&str>, &str)) {
    let done = bench.succeeds(&Action::Kexec(inputs)).0;
    assert_eq!((done.next, done.outcome.warnings), (Next::Kexec, Vec::new()));
    let found = bench.loaded.lock().unwrap().take().unwrap();
    assert_eq!((found.kernel.as_str(), found.initrd.as_deref(), found.cmdline.as_str()), expect);
}

fn check_refused(bench: &Bench, inputs: Kexec, expect: &str) {
    let told = bench.refusal(&Action::Kexec(inputs)).replace(&format!(" of {}", bench.path("disk").display()), "");
    assert!(told.contains(expect), "{told}");
    assert_eq!(*bench.loaded.lock().unwrap(), None);
}

#[test]
fn the_default_entry_of_systemd_boot_is_loaded() {
    let true = can_mount() else { return };
    let entry = "title Debian\nversion 6.9\nlinux /debian/6.9/linux\ninitrd /ucode\ninitrd /debian/6.9/initrd\n\
                 options root=x\noptions ro\n";
    let newer = "title Debian\nversion 6.10\nlinux /debian/6.10/linux\noptions root=x\n";
    let gone = "version 7\nlinux /debian/7/linux\noptions root=x\n";
    let mut esp = vec![
        ("loader/entries/debian-6.9.conf", entry),
        ("loader/entries/debian-6.10.conf", newer),
        ("loader/entries/debian-7.conf", gone),
        ("debian/6.9/linux", "kernel 6.9"),
        ("debian/6.10/linux", "kernel 6.10"),
        ("debian/6.9/initrd", "initrd"),
        ("ucode", "ucode!"),
    ];
    // GRUB's menu does not count if systemd-boot has one.
    let root = [OS_RELEASE, ("boot/grub/grub.cfg", "menuentry x {\nlinux /v a\n}\n"), ("v", "other")];
    check(&installed(&esp, &[], &root), Kexec::default(), ("kernel 6.10", None, "root=x"));
    esp.push(("loader/loader.conf", "timeout 3\ndefault debian-6.9*\n"));
    let bench = installed(&esp, &[], &root);
    check(&bench, Kexec::default(), ("kernel 6.9", Some("ucode!\0\0initrd\0\0"), "root=x ro"));
    let inputs = Kexec { cmdline: Some("single".to_owned()), ..Kexec::default() };
    check(&bench, inputs, ("kernel 6.9", Some("ucode!\0\0initrd\0\0"), "single"));
}

#[test]
fn the_default_entry_of_grub_is_loaded_from_the_partition_it_names() {
    let true = can_mount() else { return };
    let boot = [("vmlinuz-6.1", "kernel"), ("initrd.img-6.1", "initrd")];
    let config = |search: &str| {
        format!("menuentry 'Debian' {{\n\t{search}\n\tlinux /vmlinuz-6.1 root=x ro\n\tinitrd /initrd.img-6.1\n}}\n")
    };
    let on_boot = config("");
    let boot_files = [boot[0], boot[1], ("grub/grub.cfg", on_boot.as_str())];
    check(&installed(&[], &boot_files, &[OS_RELEASE]), Kexec::default(), ("kernel", Some("initrd"), "root=x ro"));

    let uuid = "0a1b2c3d-0000-4000-8000-000000000001";
    let on_root = config(&format!("search --no-floppy --fs-uuid --set=root {uuid}"));
    let bench = installed(&[], &boot, &[OS_RELEASE, ("boot/grub/grub.cfg", &on_root)]);
    let boot = format!("{}?offset={}", bench.place("disk"), BOOT_AT * MIB);
    run(Command::new("tune2fs").args(["-U", uuid]).arg(boot));
    check(&bench, Kexec::default(), ("kernel", Some("initrd"), "root=x ro"));
}

#[test]
fn fedoras_entries_have_their_variables_and_their_default() {
    let true = can_mount() else { return };
    let entry = |version: &str| {
        format!("title Fedora\nversion {version}\nlinux /vmlinuz-{version}\noptions $kernelopts $tuned_params\n")
    };
    let (older, newer) = (entry("6.1"), entry("6.2"));
    let block = "# GRUB Environment Block\nsaved_entry=id-6.1\nkernelopts=root=x ro\n####";
    let boot = [
        ("loader/entries/id-6.1.conf", older.as_str()),
        ("loader/entries/id-6.2.conf", newer.as_str()),
        ("vmlinuz-6.1", "kernel 6.1"),
        ("vmlinuz-6.2", "kernel 6.2"),
        ("grub2/grubenv", block),
    ];
    check(&installed(&[], &boot, &[OS_RELEASE]), Kexec::default(), ("kernel 6.1", None, "root=x ro"));
}

#[test]
fn variables_of_fedoras_entries_are_read_where_grub_reads_them() {
    let true = can_mount() else { return };
    let boot = [
        ("loader/entries/id-6.1.conf", "title RHEL\nlinux /vmlinuz-6.1\noptions $kernelopts quiet\n"),
        ("vmlinuz-6.1", "kernel"),
        ("grub2/grubenv", "-> ../efi/EFI/redhat/grubenv"),
    ];
    let check_esp = |esp: Files, expect| check(&installed(esp, &boot, &[OS_RELEASE]), Kexec::default(), expect);
    let menu = ("EFI/redhat/grub.cfg", "load_env\nset kernelopts=\"root=menu\"\nblscfg\n");
    let block = ("EFI/redhat/grubenv", "# GRUB Environment Block\nkernelopts=root=x ro\n####");
    let stale = [
        ("EFI/BOOT/grub.cfg", "configfile /EFI/redhat/grub.cfg\n"),
        ("EFI/BOOT/grubenv", "# GRUB Environment Block\nkernelopts=root=stale\n####"),
    ];
    check_esp(&[menu, block, stale[0], stale[1]], ("kernel", None, "root=x ro quiet"));
    check_esp(&[menu], ("kernel", None, "root=menu quiet"));
    check_esp(&[block], ("kernel", None, "root=x ro quiet"));
}

#[test]
fn a_unified_kernel_image_is_taken_apart() {
    let true = can_mount() else { return };
    let image = unified(&[
        (".osrel", "ID=debian\nVERSION_ID=12\n"),
        (".cmdline", "root=x ro\n\0\0"),
        (".linux", "kernel"),
        (".initrd", "initrd"),
        (".ucode", "ucode!"),
    ]);
    let addon = unified(&[(".cmdline", "quiet")]);
    let site = unified(&[(".cmdline", "site=1")]);
    let esp = [
        ("EFI/Linux/debian-6.1.efi", image.as_str()),
        ("EFI/Linux/debian-6.1.efi.extra.d/a.addon.efi", &addon),
        ("loader/addons/site.addon.efi", &site),
        ("EFI/Linux/broken-9.efi", "MZ"),
    ];
    let expect = ("kernel\0\0", Some("ucode!\0\0initrd\0\0"), "root=x ro site=1 quiet");
    check(&installed(&esp, &[], &[OS_RELEASE]), Kexec::default(), expect);
}

#[test]
fn menus_made_to_be_trouble_are_refused() {
    let true = can_mount() else { return };
    let names: Vec<String> = (0..257).map(|number| format!("loader/entries/{number}.conf")).collect();
    let check = |names: &[String], content: &str, expect: &str| {
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), content)).collect();
        check_refused(&installed(&[], &[], &files), Kexec::default(), expect);
    };
    check(&names, "linux /a\n", "it has 257 entries, more than 256");
    check(&names[..1], &" ".repeat((64 << 10) + 1), "it is larger than 64 KiB");
    let large = format!("linux /a\ntitle {}\n", "x".repeat(50 << 10));
    check(&names[..90], &large, "its boot entries take up more than 4 MiB");
}

#[test]
fn without_a_boot_loader_the_newest_kernel_is_loaded() {
    let true = can_mount() else { return };
    let mut root = vec![
        OS_RELEASE,
        ("vmlinuz", "-> boot/vmlinuz-6.1"),
        ("initrd.img", "-> boot/initrd.img-6.1"),
        ("boot/vmlinuz-6.1", "kernel"),
        ("boot/initrd.img-6.1", "initrd"),
    ];
    let expect = "no command line was found for /vmlinuz of partition 3 (system)";
    check_refused(&installed(&[], &[], &root), Kexec::default(), expect);
    root.push(("etc/kernel/cmdline", "root=x ro\n"));
    check(&installed(&[], &[], &root), Kexec::default(), ("kernel", Some("initrd"), "root=x ro"));
    let extlinux = "default a\nlabel a\nlinux ../vmlinuz-6.1\ninitrd ../initrd.img-6.1\nappend root=y\n";
    root.push(("boot/extlinux/extlinux.conf", extlinux));
    check(&installed(&[], &[], &root), Kexec::default(), ("kernel", Some("initrd"), "root=y"));
}

/// A disk without a boot loader whose system has links to its newest kernel.
fn with_links(boot: Files, root: Files) -> Bench {
    installed(&[], boot, &[&[OS_RELEASE, ("etc/kernel/cmdline", "root=x ro\n")], root].concat())
}

#[test]
fn the_newest_kernel_has_the_initrd_beside_it_on_a_boot_partition() {
    let true = can_mount() else { return };
    let files = [("vmlinuz-6.1", "kernel"), ("initrd.img-6.1", "initrd")];
    let links = [("vmlinuz", "-> vmlinuz-6.1"), ("initrd.img", "-> initrd.img-6.1")];
    let whole = ("kernel", Some("initrd"), "root=x ro");
    check(&with_links(&[files, links].concat(), &[]), Kexec::default(), whole);
    // Debian has its links in the root. They point into what is mounted on /boot.
    let root = [("boot/README", ""), ("vmlinuz", "-> boot/vmlinuz-6.1"), ("initrd.img", "-> boot/initrd.img-6.1")];
    check(&with_links(&files, &root), Kexec::default(), whole);
    // Some kernels need no initrd.
    check(&with_links(&[files[0], links[0]], &[]), Kexec::default(), ("kernel", None, "root=x ro"));
}

#[test]
fn the_newest_kernel_is_not_started_without_an_initrd_that_is_elsewhere() {
    let true = can_mount() else { return };
    let refused = |boot: Files, root: Files, kernel: &str, initrd: &str| {
        let expect = format!("an initrd for {kernel} does not exist: looked for {initrd}; give");
        check_refused(&with_links(boot, root), Kexec::default(), &expect);
    };
    let (kernel, initrd) = (("vmlinuz", "kernel"), ("initrd.img", "initrd"));
    let on_boot = ["/vmlinuz of partition 2 (boot)", "/initrd.img of partition 2 (boot)"];
    refused(&[kernel], &[initrd], on_boot[0], on_boot[1]);
    refused(&[kernel], &[("boot/initrd.img", "initrd")], on_boot[0], on_boot[1]);
    let on_root = ["/vmlinuz of partition 3 (system)", "/initrd.img of partition 3 (system)"];
    refused(&[initrd], &[kernel], on_root[0], on_root[1]);
    refused(&[], &[kernel, ("initrd.img", "-> boot/initrd.img-6.1")], on_root[0], on_root[1]);
}

#[test]
fn an_entry_is_not_started_without_its_initrd() {
    let true = can_mount() else { return };
    let root = [OS_RELEASE, ("initrd.img-6.1", "initrd"), ("boot/initrd.img-6.1", "initrd")];
    let menus = [
        ("loader/entries/a.conf", "linux /vmlinuz-6.1\ninitrd /initrd.img-6.1\noptions root=x\n"),
        ("grub/grub.cfg", "menuentry a {\nlinux /vmlinuz-6.1 root=x\ninitrd /initrd.img-6.1\n}\n"),
        ("extlinux/extlinux.conf", "label a\nlinux /vmlinuz-6.1\ninitrd /initrd.img-6.1\nappend root=x\n"),
        ("extlinux.conf", "label a\nlinux /boot/vmlinuz-6.1\ninitrd /boot/initrd.img-6.1\nappend root=x\n"),
        ("grub2/grub.cfg", "menuentry a {\nlinux /vmlinuz-6.1 root=x\ninitrd /vmlinuz-6.1 /initrd.img-6.1\n}\n"),
    ];
    for menu in menus {
        for root in [&root[..], &root[..1]] {
            let expect = "an initrd for /vmlinuz-6.1 of partition 2 (boot) does not exist: looked for \
                          /initrd.img-6.1 of partition 2 (boot); give";
            check_refused(&installed(&[], &[menu, ("vmlinuz-6.1", "kernel")], root), Kexec::default(), expect);
        }
    }
}

#[test]
fn a_kernel_that_is_given_is_loaded_wherever_it_is_mounted() {
    let true = can_mount() else { return };
    let bench = installed(&[], &[("vmlinuz-6.1", "kernel"), ("initrd.img-6.1", "initrd")], &[OS_RELEASE]);
    let given = |kernel: &str| Kexec {
        kernel: Some(kernel.to_owned()),
        initrd: Some("/boot/initrd.img-6.1".to_owned()),
        cmdline: Some("root=x".to_owned()),
        ..Kexec::default()
    };
    check(&bench, given("/boot/vmlinuz-6.1"), ("kernel", Some("initrd"), "root=x"));
    let expect = "there is no kernel /boot/vmlinuz-6.2: looked for /boot/vmlinuz-6.2 of partition 3 (system), \
                  /vmlinuz-6.2 of partition 1 (esp), /vmlinuz-6.2 of partition 2 (boot)";
    check_refused(&bench, given("/boot/vmlinuz-6.2"), expect);
    let expect = "there is no kernel /vmlinuz-6.1: looked for /vmlinuz-6.1 of partition 3 (system)";
    check_refused(&bench, given("/vmlinuz-6.1"), expect);
    check_refused(&bench, Kexec::default(), "looking for a kernel that a boot loader starts");
}

#[test]
fn kernel_and_initrd_that_are_given_are_each_where_the_system_has_them() {
    let true = can_mount() else { return };
    let given = |kernel: &str, initrd: &str| Kexec {
        kernel: Some(kernel.to_owned()),
        initrd: Some(initrd.to_owned()),
        cmdline: Some("root=x".to_owned()),
        ..Kexec::default()
    };
    let esp = [("linux", "kernel of the ESP"), ("vmlinuz", "other"), ("initrd", "other")];
    let boot = [("vmlinuz", "kernel"), ("initrd", "initrd")];
    let fstab = ("etc/fstab", "PARTLABEL=boot /boot ext4 defaults 0 2\nPARTLABEL=esp /boot/efi vfat umask=077 0 1\n");
    let root =
        [OS_RELEASE, ("initrd", "initrd of the root"), ("boot/initrd", "covered"), ("boot/only", "covered"), fstab];
    let bench = installed(&esp, &boot, &root);
    check(&bench, given("/boot/vmlinuz", "/boot/initrd"), ("kernel", Some("initrd"), "root=x"));
    check(&bench, given("/boot/vmlinuz", "/initrd"), ("kernel", Some("initrd of the root"), "root=x"));
    check(&bench, given("boot/efi/linux", "/boot//initrd"), ("kernel of the ESP", Some("initrd"), "root=x"));
    let expect = "there is no initrd /boot/only: looked for /only of partition 2 (boot)";
    check_refused(&bench, given("/boot/vmlinuz", "/boot/only"), expect);

    // A mount covers everything below its mount point, including links.
    let links = [("vmlinuz", "-> boot/vmlinuz"), ("boot/vmlinuz", "-> vmlinuz-5.0"), ("boot/vmlinuz-5.0", "covered")];
    let long = format!("PARTLABEL=boot /boot ext4\n# {}\n", "x".repeat(70_000));
    let long = [OS_RELEASE, ("etc/fstab", &long)];
    for root in [[&root[..1], &root[4..], &links[..]].concat(), [&long[..], &links[..2]].concat()] {
        let bench = installed(&esp, &boot, &root);
        check(&bench, given("/vmlinuz", "/boot/initrd"), ("kernel", Some("initrd"), "root=x"));
        check(&bench, given("/boot/vmlinuz", "/boot/initrd"), ("kernel", Some("initrd"), "root=x"));
    }

    // The same holds if a parent folder is the link, and if the link leads upwards.
    let links = [("boot", "-> efi"), ("efi/linux", "covered"), ("usr/k", "-> ../efi/./linux"), ("initrd", "i")];
    let bench =
        installed(&esp, &boot, &[&[OS_RELEASE, ("etc/fstab", "PARTLABEL=esp /efi vfat\n")], &links[..]].concat());
    check(&bench, given("/boot/linux", "/initrd"), ("kernel of the ESP", Some("i"), "root=x"));
    check(&bench, given("/usr/k", "/initrd"), ("kernel of the ESP", Some("i"), "root=x"));

    // The file system that is mounted there cannot be read.
    let bench = installed(&esp, &boot, &root);
    spoil(&bench.path("disk"), BOOT_AT);
    let expect = "its /boot is on a partition that is not mounted: partition 2 (boot) was not searched: ";
    check_refused(&bench, given("/boot/vmlinuz", "/initrd"), expect);
    let bench = installed(&esp, &boot, &root);
    let disk = File::options().write(true).open(bench.path("disk")).unwrap();
    disk.write_all_at(&vec![0; 9 * MIB], (BOOT_AT * MIB) as u64).unwrap();
    let expect = "its /boot is on a partition that is not mounted: partition 2 (boot) has no file system that can";
    check_refused(&bench, given("/boot/vmlinuz", "/initrd"), expect);

    // No root file system is found.
    let bench = installed(&esp, &boot, &[("flatcar/vmlinuz-a", "kernel of nowhere")]);
    check(&bench, given("/boot/vmlinuz", "/boot/initrd"), ("other", Some("other"), "root=x"));
    check(&bench, given("/flatcar/vmlinuz-a", "/initrd"), ("kernel of nowhere", Some("other"), "root=x"));
    check(&bench, given("/boot/efi/linux", "/boot/initrd"), ("kernel of the ESP", Some("other"), "root=x"));

    // No fstab says what is mounted where.
    let bench = installed(&esp[..1], &boot[..1], &root[..2]);
    check(&bench, given("/boot/vmlinuz", "/initrd"), ("kernel", Some("initrd of the root"), "root=x"));
    check(&bench, given("/efi/linux", "/initrd"), ("kernel of the ESP", Some("initrd of the root"), "root=x"));
    let expect = "there is no initrd /boot/efi/i: looked for /boot/efi/i of partition 3 (system), /i of partition 1 \
                  (esp), /i of partition 2 (boot), /efi/i of partition 1 (esp), /efi/i of partition 2 (boot)";
    check_refused(&bench, given("/boot/vmlinuz", "/boot/efi/i"), expect);
}
