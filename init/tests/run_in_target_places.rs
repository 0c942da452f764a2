//! `slipway action run-in-target` in a system whose root and /var are subvolumes of one btrfs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
}

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use common::MIB;
use common::disk_image::{can_mount_btrfs, run};

/// Mounts the disk in a private mount namespace and runs a script in it.
fn mounted(disk: &Path, script: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let script = format!("mount -o loop \"$0\" \"$1\"; trap 'cd /; umount \"$1\"' EXIT; cd \"$1\"; {script}");
    run(Command::new("unshare").args(["--mount", "sh", "-euc", &script]).arg(disk).arg(place.path()))
}

#[test]
fn a_script_sees_what_the_system_mounts_from_its_disk() {
    let true = can_mount_btrfs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    File::create(&disk).unwrap().set_len((130 * MIB) as u64).unwrap();
    run(Command::new("mkfs.btrfs").args(["-q", "-L", "fs"]).arg(&disk));
    let make = "for s in @ @var @home; do btrfs -q subvolume create $s; done
        cd @; mkdir etc bin proc sys dev run var; echo ID=x >etc/os-release; cp -L /bin/sh bin/sh
        for l in $(ldd /bin/sh | grep -o '/[^ ]*'); do mkdir -p .$(dirname $l); cp -L $l .$l; done
        echo 'LABEL=fs / btrfs subvol=@
        LABEL=fs /var btrfs subvol=@var
        LABEL=fs /home btrfs subvol=/@home
        tmpfs /tmp tmpfs defaults
        LABEL=other /srv ext4 defaults' >etc/fstab";
    mounted(&disk, make);
    let script = folder.path().join("script");
    fs::write(&script, "echo one > /var/one; echo two > /home/two; echo three > /three\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(["action", "--json", "run-in-target", "--disk"]).arg(&disk).arg("--script").arg(&script);
    let said = run(&mut command);
    assert!(said.contains("/srv is not mounted: LABEL=other is not on this disk"), "{said}");
    let copy = folder.path().join("copy");
    fs::copy(&disk, &copy).unwrap();
    assert_eq!(mounted(&copy, "cat @var/one @home/two @/three"), "one\ntwo\nthree\n");
}
