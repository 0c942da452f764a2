//! `kernel-args` on disks that carry an image, with different boot loaders.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::Command;

use common::disk_image::{
    can_mount, can_mount_btrfs, copy_file, debugfs, read_file, run, set_xattr, spoil, unified, write_file, xattr,
};
use common::installed::{ESP_AT, ROOT_AT, installed};
use common::{Bench, MIB, chain};
use slipway_actions::{Error, TargetError};
use slipway_protocol::{Action, KernelArgReplacement, KernelArgs};

const ROOT_LINE: &str = "root=PARTLABEL=system ro";

fn words(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

fn append(arguments: &[&str]) -> KernelArgs {
    KernelArgs { append: words(arguments), ..KernelArgs::default() }
}

fn delete(arguments: &[&str]) -> KernelArgs {
    KernelArgs { delete: words(arguments), ..KernelArgs::default() }
}

fn replace(old: &str, new: &str) -> KernelArgs {
    let replacement = KernelArgReplacement { old: old.to_owned(), new: new.to_owned() };
    KernelArgs { replace: vec![replacement], ..KernelArgs::default() }
}

/// Runs the action twice. The second run must change nothing. Returns the summary and the warnings of the first.
fn run_twice(bench: &Bench, wanted: &KernelArgs) -> (String, Vec<String>) {
    let run = || bench.succeeds(&Action::KernelArgs(wanted.clone())).0;
    let first = run().outcome;
    let again = run().outcome.summary;
    assert!(again.starts_with("the kernel arguments are already as requested in "), "{again}");
    (first.summary, first.warnings)
}

/// The reason why the action is refused. Checks that these files are unchanged.
fn refusal(bench: &Bench, wanted: KernelArgs, kept: &[(usize, &str)]) -> String {
    let files = || kept.iter().map(|(at, path)| content(bench, *at, path)).collect::<Vec<_>>();
    let before = files();
    let message = bench.refusal(&Action::KernelArgs(wanted));
    assert_eq!(files(), before, "{message}");
    message
}

fn content(bench: &Bench, at: usize, path: &str) -> String {
    read_file(&bench.path("disk"), at, path).unwrap_or_else(|| panic!("{path} is missing")).0
}

#[test]
fn entries_and_their_template_get_the_arguments_once() {
    let true = can_mount() else { return };
    let entry = |extra: &str| format!("title a\nlinux /a\noptions {ROOT_LINE}{extra}\n");
    let bench = installed(
        &[("etc/os-release", ""), ("etc/kernel/cmdline", &format!("{ROOT_LINE}\n"))],
        &[
            ("loader/loader.conf", "timeout 3\n"),
            ("loader/entries/a.conf", &entry("")),
            ("loader/entries/b.conf", &entry(" quiet")),
        ],
    );
    let (summary, warnings) = run_twice(&bench, &append(&["quiet", "console=ttyS0,115200"]));
    assert_eq!(summary, "added quiet console=ttyS0,115200 to 3 files");
    assert_eq!(warnings, [""; 0]);
    let added = " quiet console=ttyS0,115200";
    assert_eq!(content(&bench, ESP_AT, "/loader/entries/a.conf"), entry(added));
    assert_eq!(content(&bench, ESP_AT, "/loader/entries/b.conf"), entry(added));
    assert_eq!(content(&bench, ROOT_AT, "/etc/kernel/cmdline"), format!("{ROOT_LINE}{added}\n"));
    assert_eq!(content(&bench, ESP_AT, "/loader/loader.conf"), "timeout 3\n");
}

#[test]
fn a_system_without_a_template_gets_one_from_its_entry() {
    let true = can_mount() else { return };
    let entries = [
        ("loader/entries/a.conf", "linux /a\noptions root=old ro\n"),
        ("loader/entries/b.conf", "linux /b\noptions root=new ro $tuned_params\n"),
    ];
    let bench = installed(&[("etc/os-release", ""), ("usr/bin/kernel-install", "")], &entries);
    let (_, warnings) = run_twice(&bench, &append(&["quiet"]));
    assert_eq!(warnings, [""; 0]);
    let made = read_file(&bench.path("disk"), ROOT_AT, "/etc/kernel/cmdline");
    assert_eq!(made, Some(("root=new ro quiet\n".to_owned(), "0644 0:0".to_owned())));

    let vendors = [("usr/bin/kernel-install", ""), ("usr/lib/kernel/cmdline", "root=vendor ro\n")];
    let bench = installed(&vendors, &entries);
    run_twice(&bench, &append(&["quiet"]));
    assert_eq!(content(&bench, ROOT_AT, "/etc/kernel/cmdline"), "root=vendor ro quiet\n");
    assert_eq!(content(&bench, ROOT_AT, "/usr/lib/kernel/cmdline"), "root=vendor ro\n");

    let bench = installed(&[("etc/os-release", "")], &entries);
    let (_, warnings) = run_twice(&bench, &append(&["quiet"]));
    assert!(warnings[0].contains("/etc/kernel/cmdline does not exist"), "{warnings:?}");
}

#[test]
fn grub_in_the_style_of_debian_is_edited_with_its_defaults() {
    let true = can_mount() else { return };
    let menu = "menuentry 'Debian' {\n\tlinux\t/boot/vmlinuz-6.1 root=UUID=x ro  console=tty0 quiet\n}\n\
                menuentry 'Debian (recovery mode)' {\n\tlinux\t/boot/vmlinuz-6.1 root=UUID=x ro single console=tty0\n\
                }\n\
                menuentry 'Memory test' {\n\tlinux16 /boot/memtest86+.bin console=tty0\n}\n";
    let bench = installed(
        &[
            ("boot/grub/grub.cfg", menu),
            ("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX='console=tty0'\n"),
            ("etc/default/grub.d/site.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt\"\n"),
        ],
        &[("EFI/debian/grub.cfg", "configfile $prefix/grub.cfg\n")],
    );
    let wanted = KernelArgs {
        append: words(&["k=\"v w\""]),
        replace: replace("quiet", "loglevel=7").replace,
        ..delete(&["console"])
    };
    let (summary, warnings) = run_twice(&bench, &wanted);
    assert_eq!(summary, "deleted console, replaced quiet with loglevel=7, added k=\"v w\" in 3 files");
    assert_eq!(warnings, [""; 0]);
    let expect = "menuentry 'Debian' {\n\tlinux\t/boot/vmlinuz-6.1 root=UUID=x ro loglevel=7 'k=v w'\n}\n\
                  menuentry 'Debian (recovery mode)' {\n\tlinux\t/boot/vmlinuz-6.1 root=UUID=x ro single\n}\n\
                  menuentry 'Memory test' {\n\tlinux16 /boot/memtest86+.bin console=tty0\n}\n";
    assert_eq!(content(&bench, ROOT_AT, "/boot/grub/grub.cfg"), expect);
    let defaults = "GRUB_CMDLINE_LINUX_DEFAULT=\"loglevel=7\"\nGRUB_CMDLINE_LINUX=\"\"\n";
    assert_eq!(content(&bench, ROOT_AT, "/etc/default/grub"), defaults);
    let site = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt 'k=v w'\"\n";
    assert_eq!(content(&bench, ROOT_AT, "/etc/default/grub.d/site.cfg"), site);
}

#[test]
fn grub_in_the_style_of_fedora_is_edited_where_its_entries_have_their_arguments() {
    let true = can_mount() else { return };
    let env = |value: &str| format!("{:#<1024}", format!("# GRUB Environment Block\nkernelopts={value}\n"));
    let bench = installed(
        &[
            ("boot/grub2/grub.cfg", "insmod blscfg\nblscfg\n"),
            ("boot/grub2/grubenv", &env("root=x ro ")),
            ("boot/loader/entries/a.conf", "linux /a\noptions $kernelopts rhgb\n"),
            ("boot/loader/entries/b.conf", "linux /b\noptions root=x ro rhgb $tuned_params\n"),
            ("boot/boot", "-> ."),
            ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"rhgb\"\nGRUB_ENABLE_BLSCFG=true\n"),
        ],
        &[],
    );
    let wanted = KernelArgs { append: words(&["k=\"v w\""]), ..delete(&["rhgb"]) };
    let (_, warnings) = run_twice(&bench, &wanted);
    assert_eq!(warnings, [""; 0]);
    assert_eq!(content(&bench, ROOT_AT, "/boot/grub2/grubenv"), env("root=x ro k=\"v w\""));
    assert_eq!(content(&bench, ROOT_AT, "/boot/loader/entries/a.conf"), "linux /a\noptions $kernelopts\n");
    let entry = "linux /b\noptions root=x ro $tuned_params k=\"v w\"\n";
    assert_eq!(content(&bench, ROOT_AT, "/boot/loader/entries/b.conf"), entry);
    let defaults = "GRUB_CMDLINE_LINUX=\"'k=v w'\"\nGRUB_ENABLE_BLSCFG=true\n";
    assert_eq!(content(&bench, ROOT_AT, "/etc/default/grub"), defaults);
    let message =
        refusal(&bench, append(&["a;b"]), &[(ROOT_AT, "/boot/grub2/grubenv"), (ROOT_AT, "/etc/default/grub")]);
    assert!(message.contains("GRUB runs its options as a command"), "{message}");
}

#[test]
fn arguments_of_fedoras_entries_are_changed_where_grub_reads_them() {
    let true = can_mount() else { return };
    let env = |value: &str| format!("{:#<1024}", format!("# GRUB Environment Block\nkernelopts={value}\n"));
    let menu = |value: &str| format!("load_env\nset kernelopts=\"{value}\"\nblscfg\n");
    let entry = "linux /a\noptions $kernelopts $tuned_params\n";
    let bench = installed(
        &[
            ("boot/loader/entries/a.conf", entry),
            ("boot/grub2/grubenv", "-> ../efi/EFI/redhat/grubenv"),
            ("etc/default/grub", "GRUB_CMDLINE_LINUX=\"\"\nGRUB_ENABLE_BLSCFG=true\n"),
        ],
        &[("EFI/redhat/grub.cfg", &menu("root=x")), ("EFI/redhat/grubenv", &env("root=x ro"))],
    );
    run_twice(&bench, &append(&["a=1"]));
    assert_eq!(content(&bench, ESP_AT, "/EFI/redhat/grubenv"), env("root=x ro a=1"));
    assert_eq!(content(&bench, ESP_AT, "/EFI/redhat/grub.cfg"), menu("root=x a=1"));
    assert_eq!(content(&bench, ROOT_AT, "/boot/loader/entries/a.conf"), entry);
}

#[test]
fn a_file_system_made_to_be_trouble_is_refused() {
    let true = can_mount() else { return };
    let names: Vec<String> = (0..257).map(|number| number.to_string()).collect();
    let many = |path: fn(&String) -> String| names.iter().map(path).collect::<Vec<String>>();
    let check = |paths: Vec<String>, content: &str, expect: &str| {
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), content)).collect();
        let message = refusal(&installed(&files, &[]), append(&["a"]), &[]);
        assert!(message.contains(expect), "{message}");
    };
    let entry = "linux /a\noptions root=x\n";
    check(many(|name| format!("loader/entries/{name}.conf")), entry, "it has 257 entries, more than 256");
    check(many(|name| format!("EFI/Linux/{name}.efi")), "MZ", "it has 257 entries, more than 256");
    check(many(|name| format!("EFI/{name}/x")), "", "it has 257 entries, more than 256");
    check(vec!["loader/entries/a.conf".to_owned()], &" ".repeat((64 << 10) + 1), "it is larger than 64 KiB");
    let menu = format!("linux /vmlinuz root=x\n{}", " ".repeat(3 * MIB));
    check(vec!["boot/grub/grub.cfg".to_owned(), "boot/grub2/grub.cfg".to_owned()], &menu, "take up more than 8 MiB");
    check(vec!["boot/grub/grub.cfg".to_owned()], &menu.repeat(2), "it is larger than 4 MiB");
}

#[test]
fn links_stay_and_files_keep_or_inherit_their_labels() {
    let true = can_mount() else { return };
    let bench = installed(
        &[
            ("etc/default/grub", "-> ../sysconfig/grub"),
            ("etc/sysconfig/grub", "GRUB_TIMEOUT=5\n"),
            ("etc/kernel/install.conf", ""),
            ("usr/bin/kernel-install", ""),
        ],
        &[("loader/entries/a.conf", "linux /a\noptions root=x ro\n")],
    );
    let disk = bench.path("disk");
    const LABEL: &str = "security.selinux";
    let [of_file, of_folder] = ["system_u:object_r:bootloader_etc_t:s0", "system_u:object_r:etc_t:s0"];
    set_xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", LABEL, of_file);
    set_xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", "user.note", "kept");
    debugfs(&disk, ROOT_AT, "sif /etc/sysconfig/grub mode 0100640");
    let of_content = ["security.ima", "security.evm"];
    for name in of_content {
        set_xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", name, "old");
        assert_eq!(xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", name), "old");
    }
    set_xattr(&disk, ROOT_AT, "/etc/kernel", LABEL, of_folder);
    run_twice(&bench, &append(&["quiet"]));
    let edited = "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n";
    assert_eq!(read_file(&disk, ROOT_AT, "/etc/sysconfig/grub"), Some((edited.to_owned(), "0640 0:0".to_owned())));
    let kept = ["/etc/sysconfig/grub", "/etc/kernel/cmdline"].map(|file| xattr(&disk, ROOT_AT, file, LABEL));
    assert_eq!(kept, [of_file, of_folder]);
    assert_eq!(xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", "user.note"), "kept");
    assert_eq!(of_content.map(|name| xattr(&disk, ROOT_AT, "/etc/sysconfig/grub", name)), ["", ""]);
    let link = debugfs(&disk, ROOT_AT, "stat /etc/default/grub");
    assert!(link.contains("Type: symlink"), "{link}");
}

#[test]
fn menus_of_extlinux_are_edited_with_a_warning_that_names_their_program() {
    let true = can_mount() else { return };
    let menu = "label l0\n\tlinux /boot/vmlinuz\n\tappend root=x ro quiet\n";
    let check = |programs: &[(&str, &str)], expect: &str| {
        let bench = installed(&[&[("boot/extlinux/extlinux.conf", menu)], programs].concat(), &[]);
        let (_, warnings) = run_twice(&bench, &append(&["a"]));
        let edited = "label l0\n\tlinux /boot/vmlinuz\n\tappend root=x ro quiet a\n";
        assert_eq!(content(&bench, ROOT_AT, "/boot/extlinux/extlinux.conf"), edited);
        assert!(matches!(warnings.as_slice(), [warning] if warning.ends_with(expect)), "{warnings:?}");
    };
    let debian = "the menu for a kernel installed later may not have the arguments: /usr/sbin/u-boot-update writes it \
                  from U_BOOT_PARAMETERS in /etc/default/u-boot or /etc/u-boot-menu/conf.d; add them there too";
    check(&[("usr/sbin/u-boot-update", "")], debian);
    check(&[], "the program that writes it is not known");
}

#[test]
fn files_of_other_loaders_are_named() {
    let true = can_mount() else { return };
    let menu = ("boot/extlinux/extlinux.conf", "label l0\n\tlinux /boot/vmlinuz\n\tappend root=x ro\n");
    for (path, text, loader) in [
        ("boot/grub/menu.lst", "title a\nkernel /boot/vmlinuz root=/dev/sda1 ro\n", "GRUB Legacy"),
        ("boot/refind_linux.conf", "\"Boot\" \"ro root=UUID=x\"\n", "rEFInd"),
        ("boot/limine.conf", "/Linux\n protocol: linux\n cmdline: root=UUID=x\n", "Limine"),
        ("boot/firmware/cmdline.txt", "console=tty1 root=PARTUUID=x rootwait\n", "the Raspberry Pi's firmware"),
        ("boot/armbianEnv.txt", "verbosity=1\nextraargs=cma=256M\nconsole=both\nrootdev=UUID=x\nconsole=x", "U-Boot"),
        ("etc/lilo.conf", "image=/vmlinuz\n append=\"quiet\"\n", "LILO"),
        ("etc/zipl.conf", "[linux]\nparameters=\"root=/dev/dasda1\"\n", "zipl"),
    ] {
        let bench = installed(&[menu, (path, text), ("etc/os-release", "")], &[]);
        let (_, warnings) = run_twice(&bench, &append(&["a"]));
        let named = format!("({loader}) has kernel arguments too, which this step cannot change");
        let of_path = |warning: &String| warning.starts_with(&format!("/{path} of ")) && warning.contains(&named);
        assert!(warnings.iter().any(of_path), "{path}: {warnings:?}");
        let bench = installed(&[(path, text), ("etc/os-release", "")], &[]);
        let message = refusal(&bench, append(&["a"]), &[(ROOT_AT, &format!("/{path}"))]);
        assert!(message.contains(&format!("({loader}) has kernel arguments that slipway cannot change")), "{message}");
    }
}

/// On btrfs, the root of a file system and the root of a subvolume have the same inode number.
#[test]
fn a_subvolume_for_boot_is_not_taken_for_the_file_system_it_is_in() {
    let true = can_mount_btrfs() else { return };
    let bench = Bench::new(MIB);
    let (disk, place) = (bench.path("disk"), bench.path("place"));
    fs::File::create(&disk).unwrap().set_len((130 * MIB) as u64).unwrap();
    run(Command::new("mkfs.btrfs").arg("-q").arg(&disk));
    fs::create_dir(&place).unwrap();
    let script = "mount -o loop \"$0\" \"$1\"; trap 'umount \"$1\"' EXIT; btrfs -q subvolume create \"$1/boot\"; \
                  mkdir -p \"$1/boot/loader/entries\"; printf 'linux /a\\noptions ro\\n' \
                  >\"$1/boot/loader/entries/a.conf\"";
    // In a private mount namespace. Another process that creates a namespace would copy the mount and keep it busy.
    run(Command::new("unshare").args(["--mount", "sh", "-euc", script]).arg(&disk).arg(&place));
    assert_eq!(run_twice(&bench, &append(&["quiet"])).0, "added quiet to 1 file");
}

/// Writes an image for x86-64 to the EFI system partition.
fn with_image(bench: &Bench, name: &str, sections: &[(&str, &str)]) {
    let mut image = unified(sections).into_bytes();
    image[0x44..0x46].copy_from_slice(&0x8664_u16.to_le_bytes());
    let file = bench.put(name, &image);
    write_file(&bench.path("disk"), ESP_AT, file.as_ref(), &format!("/EFI/Linux/{name}"));
}

const STUB: (&str, &str) = (".sdmagic", "#### LoaderInfo: systemd-stub 257.2-3 ####\0");

#[test]
fn unified_kernel_images_get_the_arguments_by_an_addon() {
    let true = can_mount() else { return };
    let bench = installed(&[("etc/os-release", "")], &[("EFI/Linux/readme.txt", "")]);
    with_image(&bench, "a.efi", &[STUB, (".linux", "MZ"), (".cmdline", "root=x quiet\0")]);
    with_image(&bench, "tool.efi", &[(".text", "x")]);
    let (summary, warnings) = run_twice(&bench, &append(&["console=ttyS0", "k=\"v w\""]));
    assert_eq!(summary, "added console=ttyS0 k=\"v w\" to 1 file");
    assert_eq!(warnings, [""; 0]);
    let addon = bench.path("addon");
    let line = || {
        copy_file(&bench.path("disk"), ESP_AT, "/loader/addons/slipway.addon.efi", &addon);
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["-O", "binary", "--only-section=.cmdline"]).arg(&addon).arg(bench.path("line"));
        if !objcopy.output().is_ok_and(|output| output.status.success()) {
            eprintln!("not checked: there is no objcopy");
            return None;
        }
        Some(fs::read_to_string(bench.path("line")).unwrap().trim_end_matches('\0').to_owned())
    };
    assert!(line().is_none_or(|line| line == "console=ttyS0 k=\"v w\""));
    run_twice(&bench, &delete(&["console"]));
    assert!(line().is_none_or(|line| line == "k=\"v w\""));
    let message = refusal(&bench, delete(&["quiet"]), &[]);
    assert!(message.contains("/EFI/Linux/a.efi") && message.contains("\"quiet\" is built into it"), "{message}");
    run_twice(&bench, &delete(&["k"]));
    assert_eq!(read_file(&bench.path("disk"), ESP_AT, "/loader/addons/slipway.addon.efi"), None);
}

#[test]
fn an_image_whose_stub_reads_no_addons_is_refused() {
    let true = can_mount() else { return };
    let old = (".sdmagic", "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####\0");
    let bench = installed(&[], &[("EFI/Linux/readme.txt", "")]);
    with_image(&bench, "a.efi", &[old, (".linux", "MZ"), (".cmdline", "root=x quiet\0")]);
    let message = refusal(&bench, append(&["a"]), &[]);
    assert!(message.contains("systemd-stub 252.39-1~deb12u2, which does not read addons"), "{message}");

    for done in [append(&["quiet"]), delete(&["a"]), replace("root", "root=x")] {
        let outcome = bench.succeeds(&Action::KernelArgs(done)).0.outcome;
        assert_eq!(outcome.summary, "the kernel arguments are already as requested in the boot file");
        assert_eq!(read_file(&bench.path("disk"), ESP_AT, "/loader/addons/slipway.addon.efi"), None);
    }
}

#[test]
fn what_cannot_be_done_everywhere_is_done_nowhere() {
    let true = can_mount() else { return };
    let entries = [("loader/entries/a.conf", "linux /a\noptions root=x ro\n")];
    let bench = installed(&[("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\n")], &entries);
    let entry = [(ESP_AT, "/loader/entries/a.conf")];
    let message = refusal(&bench, append(&["a"]), &entry);
    assert!(message.starts_with("editing /etc/default/grub of the installed system: line 1: "), "{message}");

    let bench = installed(&[], &entries);
    let message = refusal(&bench, KernelArgs { append: words(&["a"]), ..replace("quiet", "loglevel=7") }, &entry);
    assert!(message.starts_with("replacing kernel argument \"quiet\": no boot entry has it"), "{message}");
    let message = refusal(&bench, replace("rw", "root"), &entry);
    assert!(message.starts_with("replacing kernel argument \"rw\": no boot entry has it"), "{message}");
}

#[test]
fn without_boot_entries_kernel_arguments_are_an_error() {
    let true = can_mount() else { return };
    let bench = installed(&[("etc/os-release", ""), ("etc/default/grub", "GRUB_TIMEOUT=5\n")], &[]);
    let message = refusal(&bench, append(&["a"]), &[(ROOT_AT, "/etc/default/grub")]);
    assert!(message.starts_with("looking for a boot loader's configuration on "), "{message}");
    let message = refusal(&bench, append(&["a b"]), &[]);
    let expect = "reading the inputs of kernel-args: it cannot add the kernel argument \"a b\"";
    assert!(message.starts_with(expect), "{message}");
}

/// The system's grub-mkconfig cannot be run here, so the error shows that it was called.
#[test]
fn a_menu_of_grub_that_is_not_there_yet_is_made_by_the_installed_system() {
    let true = can_mount() else { return };
    let root = [("etc/os-release", ""), ("usr/sbin/grub-mkconfig", ""), ("etc/default/grub", "GRUB_TIMEOUT=5\n")];
    let modules = ("boot/grub/x86_64-efi/normal.mod", "");
    let bench = installed(&[&root[..], &[modules]].concat(), &[]);
    let message = refusal(&bench, append(&["a"]), &[]);
    assert!(message.starts_with("running the script in the installed system"), "{message}");
    let defaults = "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"a\"\n";
    assert_eq!(content(&bench, ROOT_AT, "/etc/default/grub"), defaults);

    let bench = installed(&root, &[]);
    let message = refusal(&bench, append(&["a"]), &[(ROOT_AT, "/etc/default/grub")]);
    assert!(message.starts_with("looking for a boot loader's configuration on "), "{message}");
}

#[test]
fn a_partition_that_does_not_mount_is_passed_by_with_a_warning() {
    let true = can_mount() else { return };
    let bench =
        installed(&[("etc/kernel/cmdline", "ro\n")], &[("loader/entries/a.conf", "title a\nlinux /a\noptions ro\n")]);
    let disk = bench.path("disk");
    let data = 10;
    spoil(&disk, data);
    let kernel_args = Action::KernelArgs(append(&["quiet"]));
    let done = bench.succeeds(&kernel_args).0;
    assert!(done.outcome.summary.ends_with("to 2 files"), "{}", done.outcome.summary);
    assert!(done.outcome.warnings[0].contains("partition 2 (data)"), "{:?}", done.outcome.warnings);

    spoil(&disk, ROOT_AT);
    spoil(&disk, ESP_AT);
    let error = bench.run(&kernel_args).0.unwrap_err();
    assert!(matches!(error, Error::Target(TargetError::NotFound { .. })));
    for partition in ["partition 1 (esp)", "partition 2 (data)", "partition 3 (system)"] {
        let refusal = format!("{partition} of {} was not searched: mounting ext4 ", disk.display());
        assert!(chain(&error).contains(&refusal), "{}", chain(&error));
    }
}

#[test]
fn linux_below_xen_gets_the_arguments_by_grub_and_by_xens_own_program() {
    let true = can_mount() else { return };
    let menu = |extra: &str| {
        format!(
            "menuentry 'Debian' {{\n\tlinux /vmlinuz-6.1 root=x ro{extra}\n}}\nmenuentry 'Debian, with Xen' {{\n\
             \tmultiboot2 /xen-4.17.gz placeholder ${{xen_rm_opts}}\n\
             \tmodule2 /vmlinuz-6.1 placeholder root=x ro{extra}\n\tmodule2 --nounzip /initrd.img-6.1\n}}\n"
        )
    };
    let xen = |extra: &str| format!("[global]\ndefault=a\n[a]\noptions=b\nkernel=vmlinuz root=x ro{extra}\n");
    let defaults = |extra: &str| {
        format!("GRUB_CMDLINE_LINUX_DEFAULT=\"quiet{extra}\"\nGRUB_CMDLINE_LINUX_XEN_REPLACE_DEFAULT=\"c{extra}\"\n")
    };
    let bench = installed(
        &[
            ("boot/grub/grub.cfg", &menu("")),
            ("boot/grub/custom.cfg", "menuentry 'own' {\n\tlinux /bzImage rw\n}\n"),
            ("etc/default/grub", &defaults("")),
        ],
        &[("EFI/xen/xen.cfg", &xen("")), ("EFI/xen/xen.efi", "")],
    );
    assert_eq!(run_twice(&bench, &append(&["a=1"])).0, "added a=1 to 4 files");
    assert_eq!(content(&bench, ROOT_AT, "/boot/grub/grub.cfg"), menu(" a=1"));
    assert_eq!(content(&bench, ROOT_AT, "/boot/grub/custom.cfg"), "menuentry 'own' {\n\tlinux /bzImage rw a=1\n}\n");
    assert_eq!(content(&bench, ROOT_AT, "/etc/default/grub"), defaults(" a=1"));
    assert_eq!(content(&bench, ESP_AT, "/EFI/xen/xen.cfg"), xen(" a=1"));
}

#[test]
fn what_no_entry_would_get_is_not_said_to_be_added() {
    let true = can_mount() else { return };
    let menu = "menuentry 'recovery' {\n\tlinux /vmlinuz root=x ro single\n}\n";
    let bench = installed(&[("boot/grub/grub.cfg", menu), ("etc/default/grub", "GRUB_TIMEOUT=5\n")], &[]);
    let message = refusal(&bench, append(&["a=1"]), &[(ROOT_AT, "/etc/default/grub")]);
    assert!(message.starts_with("adding kernel argument \"a=1\": there are only entries for recovery"), "{message}");
}
