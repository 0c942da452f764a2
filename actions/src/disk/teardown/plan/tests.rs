//! Plans and uses on machines made of files.

use super::*;

/// Checks what is taken down from `sda` on a machine with these files in sysfs and procfs.
fn check(files: &[(&str, &str)], expect: Result<&[&str], &str>) {
    let dir = crate::text::folder(files);
    let found = plan(dir.path(), dir.path(), "sda");
    let found: Result<Vec<String>, String> = found.map(|steps| steps.iter().map(Step::doing).collect());
    let expect = expect.map(|steps| steps.iter().map(ToString::to_string).collect()).map_err(ToString::to_string);
    assert_eq!(found, expect, "{files:?}");
}

const DISK: [(&str, &str); 4] = [
    ("block/sda/dev", "8:0\n"),
    ("block/sda/sda1/partition", "1\n"),
    ("block/sda/sda1/dev", "8:1\n"),
    ("block/sda/sda2/partition", "2\n"),
];

#[test]
fn a_free_disk_needs_nothing_whatever_stands_on_others() {
    check(&[], Ok(&[]));
    let others = [
        ("self/mountinfo", "20 1 8:16 / /srv rw - ext4 /dev/sdb rw\nno line of a mount\n21 1 8:1 / -\n"),
        ("swaps", "Filename Type\n/dev/sdb1 partition 1 0 -2\n"),
        ("block/sdb/holders/md0/md/level", "raid1"),
    ];
    check(&[&DISK[..], &others[..]].concat(), Ok(&[]));
}

#[test]
fn mounts_go_innermost_first_with_what_lies_in_them() {
    let files = [
        (
            "self/mountinfo",
            "20 1 8:1 / /mnt/the\\040target rw - ext4 /dev/sda1 rw\n\
             21 20 0:5 / /mnt/the\\040target/proc rw - proc proc rw\n\
             22 20 8:2 / /mnt/the\\040target/boot rw - ext4 /dev/sda2 rw\n\
             23 22 8:3 / /mnt/the\\040target/boot/efi rw - vfat /dev/sda3 rw\n\
             24 1 8:1 /sub /bound rw - ext4 /dev/sda1 rw\n",
        ),
        ("block/loop3/loop/backing_file", "/mnt/the target/image\n"),
        ("block/loop4/loop/backing_file", "/mnt/the targets\n"),
        ("swaps", "Filename Type\n/dev/sda2 partition 1 0 -2\n/mnt/the\\040target/swap\\04 file 1 0 -3\n"),
    ];
    let expect = [
        "unmounting /bound",
        "unmounting /mnt/the target/boot/efi",
        "unmounting /mnt/the target/boot",
        "unmounting /mnt/the target/proc",
        "releasing the loop device loop3",
        "turning off swap on /mnt/the target/swap\\04",
        "unmounting /mnt/the target",
        "turning off swap on /dev/sda2",
    ];
    check(&[&DISK[..], &files[..]].concat(), Ok(&expect));
}

#[test]
fn a_stack_of_devices_goes_from_the_top() {
    let files = [
        ("block/sda/sda1/holders/md127/x", ""),
        ("block/sda/sda2/holders/dm-0/x", ""),
        ("block/md127/md/level", "raid1\n"),
        ("block/md127/holders/dm-0/x", ""),
        ("block/dm-0/dm/name", "vg-root\n"),
        ("block/dm-0/dev", "253:0\n"),
        ("block/dm-0/holders/dm-1/x", ""),
        ("block/dm-1/dm/name", "crypt\n"),
        ("block/dm-1/dev", "253:1\n"),
        ("self/mountinfo", "20 1 253:1 / /srv rw - ext4 /dev/mapper/crypt rw\n"),
    ];
    let expect = [
        "unmounting /srv",
        "removing the mapping crypt (dm-1)",
        "removing the mapping vg-root (dm-0)",
        "stopping the array md127",
    ];
    check(&[&DISK[..], &files[..]].concat(), Ok(&expect));
}

#[test]
fn firmware_raid_stops_before_what_contains_it() {
    let files = [
        ("block/sda/holders/md126/x", ""),
        ("block/sda/holders/md125/x", ""),
        ("block/md125/md/metadata_version", "external:imsm\n"),
        ("block/md126/md/metadata_version", "external:/md125/0\n"),
    ];
    check(&files, Ok(&["stopping the array md126", "stopping the array md125"]));
}

#[test]
fn every_device_of_a_btrfs_volume_is_held_by_its_mount() {
    let files = [
        ("fs/btrfs/0123/devices/sda/x", ""),
        ("fs/btrfs/0123/devices/sdb/x", ""),
        ("fs/btrfs/4567/devices/sdc/x", ""),
        ("self/mountinfo", "20 1 0:40 / /pool rw - btrfs /dev/sdb rw\n21 1 0:41 / /other rw - btrfs /dev/sdc rw\n"),
    ];
    check(&files, Ok(&["unmounting /pool"]));
}

#[test]
fn caches_are_stopped_after_what_stands_on_them() {
    let files = [("block/sda/bcache/stop", ""), ("block/sda/holders/bcache0/x", "")];
    check(&files, Ok(&["stopping the cache on sda"]));
    let files = [("block/sda/bcache/set/stop", ""), ("block/sda/bcache/set/bdev0/x", "")];
    check(&files, Ok(&["stopping the cache on sda"]));
}

#[test]
fn what_cannot_be_taken_down_is_named() {
    let expect = Err("drbd0, which is built on /dev/sda and is of a kind unknown to slipway,");
    check(&[("block/sda/holders/drbd0/x", "")], expect);
    let files = &[&DISK[..], &[("self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")]].concat();
    check(files, Err("the root file system, from /dev/sda1,"));
}

#[test]
fn holders_that_hold_each_other_end() {
    let files = [("block/sda/holders/dm-0/x", ""), ("block/dm-0/dm/name", "a\n"), ("block/dm-0/holders/dm-0/x", "")];
    check(&files, Ok(&["removing the mapping a (dm-0)"]));
}

/// Checks what uses `sda` in the words of an operator.
fn check_uses(files: &[(&str, &str)], expect: &[&str]) {
    let dir = crate::text::folder(files);
    let [own, other] = [dir.path().join("self/ns"), dir.path().join("7/ns")];
    if dir.path().join("7").exists() {
        for (folder, namespace) in [(own, "mnt:[1]"), (other, "mnt:[2]")] {
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(namespace, folder.join("mnt")).unwrap();
        }
    }
    assert_eq!(Stack::of_everybody(dir.path(), dir.path()).uses_of("sda"), expect, "{files:?}");
}

#[test]
fn what_stands_on_what_stands_on_the_disk_uses_it() {
    let mounted = |number: &str, device: &str| format!("20 1 {number} / /srv rw - ext4 /dev/{device} rw\n");
    let on_loop = mounted("7:1", "loop1");
    let loops = [
        ("block/loop1/loop/backing_file", "/dev/sda1\n"),
        ("block/loop1/loop/autoclear", "1\n"),
        ("block/loop1/dev", "7:1\n"),
    ];
    let expect = ["/dev/sda1 is held by loop1", "/dev/loop1 is mounted at /srv"];
    check_uses(&[&DISK[..], &loops, &[("self/mountinfo", &on_loop)]].concat(), &expect);
    // Nothing uses it, and it goes by itself or stays.
    check_uses(&[&DISK[..], &loops].concat(), &[]);
    let stays = [loops[0], ("block/loop1/loop/autoclear", "0\n")];
    check_uses(&[&DISK[..], &stays].concat(), &expect[..1]);
    // A partition of a loop device, a volume in it, and swap on that.
    let deep = [
        ("block/loop1/loop1p2/partition", "2\n"),
        ("block/loop1/loop1p2/holders/dm-0/x", ""),
        ("block/dm-0/dm/name", "vg-swap\n"),
        ("swaps", "Filename Type\n/dev/dm-0 partition 1 0 -2\n"),
    ];
    let expect = ["/dev/sda1 is held by loop1", "/dev/loop1p2 is held by dm-0 (vg-swap)", "/dev/dm-0 is used as swap"];
    check_uses(&[&DISK[..], &loops, &deep].concat(), &expect);
    let md = [("block/sda/holders/md0/x", ""), ("block/md0/md/level", "raid1"), ("block/md0/holders/drbd0/x", "")];
    check_uses(&md, &["/dev/sda is held by md0", "/dev/md0 is held by drbd0"]);
    check_uses(&[("block/sda/bcache/stop", "")], &["/dev/sda is used by bcache"]);
    let root = mounted("8:1", "sda1").replace("/srv", "/");
    check_uses(&[&DISK[..], &[("self/mountinfo", &root)]].concat(), &["/dev/sda1 is mounted at /"]);
}

#[test]
fn a_mount_that_only_a_container_has_uses_the_disk() {
    let mountinfo = "90 1 8:1 / /data rw - ext4 /dev/sda1 rw\n";
    let files = [("7/mountinfo", mountinfo), ("self/mountinfo", "20 1 8:16 / /srv rw - ext4 /dev/sdb rw\n")];
    check_uses(&[&DISK[..], &files].concat(), &["/dev/sda1 is mounted at /data for process 7"]);
}

#[test]
fn a_file_is_used_through_a_loop_device_or_as_swap() {
    let check = |files: &[(&str, &str)], expect: &[&str]| {
        let dir = crate::text::folder(files);
        let stack = Stack::of_everybody(dir.path(), dir.path());
        assert_eq!(stack.uses_of_file(|file| file == "/disk"), expect, "{files:?}");
    };
    let bound = [("block/loop1/loop/backing_file", "/disk\n"), ("block/loop1/dev", "7:1\n")];
    check(&bound, &[]);
    let mounted = ("self/mountinfo", "20 1 7:1 / /srv rw - ext4 /dev/loop1 rw\n");
    check(&[&bound[..], &[mounted]].concat(), &["/disk is held by loop1", "/dev/loop1 is mounted at /srv"]);
    check(&[("swaps", "Filename Type\n/disk file 1 0 -2\n")], &["/disk is used as swap"]);
}
