//! `seed-cloud-init`, `write-file` and `run-in-target` where the installed system has folders on other file systems and
//! subvolumes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use common::disk_image::{LINUX, Part, ROOT, can_mount, can_mount_btrfs, make, read_file, run};
use common::{Bench, MIB};
use slipway_protocol::{Action, SeedCloudInit, SeedPlace, WriteFile};

const SEED: &str = "lib/cloud/seed/nocloud/user-data";
const USER_DATA: &str = "#cloud-config\nhostname: x\n";

fn seed(seed: SeedPlace) -> Action {
    let (instance_id, user_data) = ("run-7".to_owned(), USER_DATA.to_owned());
    Action::SeedCloudInit(SeedCloudInit { seed, instance_id, user_data, ..SeedCloudInit::default() })
}

fn motd(path: &str) -> Action {
    Action::WriteFile(WriteFile { path: path.to_owned(), content: Some("7".to_owned()), ..WriteFile::default() })
}

/// Mounts the disk in a private mount namespace and runs a script in it.
fn mounted(disk: &Path, options: &str, script: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let script = format!("mount -o loop,{options} \"$0\" \"$1\"; trap 'cd /; umount \"$1\"' EXIT; cd \"$1\"; {script}");
    run(Command::new("unshare").args(["--mount", "sh", "-euc", &script]).arg(disk).arg(place.path()))
}

/// A disk with btrfs and no partitions, on which a script made the subvolumes.
fn btrfs(script: &str) -> Bench {
    let bench = Bench::new(MIB);
    let disk = bench.path("disk");
    File::create(&disk).unwrap().set_len((130 * MIB) as u64).unwrap();
    let uuid = "0a0a0a0a-0b0b-0c0c-0d0d-0e0e0e0e0e0e";
    run(Command::new("mkfs.btrfs").args(["-q", "-L", "fs", "-U", uuid]).arg(&disk));
    let make = "sub() { btrfs -q subvolume create \"$1\"; }
                system() { mkdir -p $1/etc $1/usr/bin $1/var; echo ID=x >$1/etc/os-release; >$1/usr/bin/cloud-init; }
                sub_id() { btrfs inspect-internal rootid \"$1\"; }\n";
    mounted(&disk, "rw", &format!("{make}{}", script.replace("UUID=x", &format!("UUID={uuid}"))));
    bench
}

/// A file of the disk below the top of btrfs.
fn file(bench: &Bench, path: &str) -> String {
    // A copy, because another process may keep the action's loop device open.
    let copy = bench.path("copy");
    fs::copy(bench.path("disk"), &copy).unwrap();
    mounted(&copy, "ro,subvolid=5", &format!("cat '{path}' 2>/dev/null || echo none"))
}

#[test]
fn a_seed_goes_into_the_subvolume_that_is_mounted_on_var() {
    let true = can_mount_btrfs() else { return };
    let fedora =
        "sub root; sub var; system root; echo 'UUID=x / btrfs subvol=root\nSOURCE /var btrfs OPTIONS' >root/etc/fstab";
    let fedora = |source: &str, options: &str| fedora.replace("SOURCE", source).replace("OPTIONS", options);
    let ubuntu = "sub @; sub @var; system @; \
                  echo '/dev/sda1 / btrfs subvol=@ 0 0\n/dev/sda1 /var btrfs rw,subvol=/@var' >@/etc/fstab";
    let suse = "s=@/.snapshots/1/snapshot; sub @; mkdir -p @/.snapshots/1; sub $s; sub @/var; system $s; \
                echo 'UUID=x / btrfs defaults\nUUID=x /var btrfs subvol=/@/var' >$s/etc/fstab; ";
    let unit = "sub @; sub @lib; system @; mkdir -p @/etc/systemd/system; printf '[Mount]\nWhat=/dev/disk/by-label/fs\n\
                Where=/var/lib\nType=btrfs\nOptions=subvol=@lib\n' >@/etc/systemd/system/var-lib.mount";
    for (script, place) in [
        (fedora("UUID=x", "compress=zstd:1,subvol=var"), "var/lib"),
        (fedora("LABEL=fs", "subvol=/var"), "var/lib"),
        (fedora("/dev/disk/by-uuid/0a0a0a0a-0b0b-0c0c-0d0d-0e0e0e0e0e0e", "subvol=var"), "var/lib"),
        (fedora("UUID=x", "subvolid='$(sub_id var)'"), "var/lib"),
        (ubuntu.to_owned(), "@var/lib"),
        (format!("{suse} btrfs subvolume set-default $s >/dev/null"), "@/var/lib"),
        (suse.to_owned(), "@/var/lib"),
        (unit.to_owned(), "@lib"),
        ("sub @; system @; rmdir @/var; sub @/var".to_owned(), "@/var/lib"),
        (
            "sub @; sub data; system @; mkdir -p @/srv/v; echo '/srv/v /var none bind' >@/etc/fstab".to_owned(),
            "@/srv/v/lib",
        ),
    ] {
        for place_wanted in [SeedPlace::Auto, SeedPlace::Root] {
            let bench = btrfs(&script);
            bench.succeeds(&seed(place_wanted));
            assert_eq!(file(&bench, &format!("{place}/cloud/seed/nocloud/user-data")), USER_DATA, "{script}");
            bench.succeeds(&motd("/var/lib/x"));
            assert_eq!(file(&bench, &format!("{place}/x")), "7", "{script}");
        }
    }
}

#[test]
fn a_read_only_root_needs_no_change_if_its_configuration_takes_a_seed() {
    let true = can_mount_btrfs() else { return };
    let micro = |config: &str| {
        format!(
            "sub @; sub @/s; sub @/var; system @/s; mkdir -p @/s/etc/cloud; \
             printf '{config}' >@/s/etc/cloud/cloud.cfg; \
             printf 'UUID=x / btrfs ro\nUUID=x /var btrfs subvol=@/var\noverlay /etc overlay defaults' >@/s/etc/fstab; \
             btrfs subvolume set-default @/s >/dev/null; btrfs property set @/s ro true"
        )
    };
    let bench = btrfs(&micro("users: [default]\n"));
    bench.succeeds(&seed(SeedPlace::Auto));
    assert_eq!(file(&bench, &format!("@/var/{SEED}")), USER_DATA);
    let bench = btrfs(&micro("datasource_list: [ Ec2 ]\n"));
    let refusal = bench.refusal(&seed(SeedPlace::Auto));
    assert!(refusal.contains("/etc/cloud/cloud.cfg (line 1) makes cloud-init use the data source Ec2"), "{refusal}");
    assert!(refusal.contains("its fstab mounts overlay on /etc"), "{refusal}");
}

/// A disk with a root, a partition for /var, and this fstab.
fn two(fstab: &str) -> Bench {
    let bench = Bench::new(MIB);
    let files = [("etc/os-release", "ID=x"), ("usr/bin/cloud-init", ""), ("etc/fstab", fstab)];
    let part = |mib, type_guid, name, files| Part { mib, type_guid, name, files };
    make(&bench.path("disk"), 60, &[part(1..30, ROOT, "system", &files), part(30..50, LINUX, "var", &[])]);
    bench
}

#[test]
fn a_partition_for_var_has_the_seed_and_other_files() {
    let true = can_mount() else { return };
    for fstab in [
        "/dev/vda1 / ext4\nPARTLABEL=var /var ext4 defaults 0 2\n",
        "/dev/vda1 / ext4\n/dev/vda2 /var ext4 defaults 0 2\n",
        "/dev/nvme0n1p1 / ext4\n/dev/nvme0n1p2 /var ext4 defaults 0 2\n",
    ] {
        let bench = two(fstab);
        let (done, _) = bench.succeeds(&seed(SeedPlace::Auto));
        assert!(
            done.outcome.summary.starts_with("seeded cloud-init in partition 2 (var) of "),
            "{}",
            done.outcome.summary
        );
        let content = |path: &str| read_file(&bench.path("disk"), 30, path).map(|(content, _)| content);
        assert_eq!(content(&format!("/{SEED}")).as_deref(), Some(USER_DATA), "{fstab}");
        bench.succeeds(&motd("/var/lib/x"));
        assert_eq!(content("/lib/x").as_deref(), Some("7"), "{fstab}");
        assert!(read_file(&bench.path("disk"), 1, "/etc/cloud/cloud.cfg.d/99_slipway.cfg").is_some());
    }
}

#[test]
fn what_is_mounted_from_elsewhere_is_named() {
    let true = can_mount() else { return };
    for (line, expect) in [
        ("tmpfs /var tmpfs size=1g", "its fstab mounts tmpfs on /var"),
        ("overlay /var/lib overlay lowerdir=/a", "its fstab mounts overlay on /var/lib"),
        ("10.0.0.1:/x /var/lib/cloud nfs defaults", "its fstab mounts nfs on /var/lib/cloud"),
        ("/dev/mapper/vg-var /var xfs defaults", "on /var: /dev/mapper/vg-var is not on this disk"),
        ("/dev/sdb1 /var xfs defaults", "on /var: /dev/sdb1 is not on this disk"),
    ] {
        let bench = two(&format!("/dev/sda1 / ext4\n{line} 0 0\n"));
        let refusal = bench.refusal(&seed(SeedPlace::Root));
        assert!(refusal.contains(&format!("{expect}; set seed: cidata")), "{refusal}");
        let refusal = bench.refusal(&motd("/var/lib/cloud/x"));
        assert!(refusal.contains(expect) && refusal.contains("which would hide the file"), "{refusal}");
        let (done, reports) = bench.succeeds(&seed(SeedPlace::Auto));
        assert!(done.outcome.summary.contains("(cidata)"), "{}", done.outcome.summary);
        assert!(reports.notes.iter().any(|note| note.contains(expect)), "{:?}", reports.notes);
    }
    let bench = two("/dev/sda1 / ext4\nPARTLABEL=var /var ext4 noauto\n");
    bench.succeeds(&seed(SeedPlace::Root));
    assert!(read_file(&bench.path("disk"), 1, &format!("/var/{SEED}")).is_some(), "it is not mounted at the start");
}
