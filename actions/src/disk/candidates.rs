//! The disks that an action may choose from, and what each is used for.

mod boot_medium;

use std::path::Path;
use std::{fs, io};

use super::list::{block_devices, is_layer};
use super::teardown::Usage;
use crate::machine::Candidate;
use boot_medium::{BootMedium, Found};

/// Lists every disk and every device used in place of one, with the reason why it must not be written to: slipway
/// booted from it, it is mounted, used as swap, or another device is built on it. If slipway is the operating system,
/// it takes down mounts, swap and such devices, so only the first reason counts.
pub(crate) fn candidates(sys: &Path, proc: &Path, is_operating_system: bool) -> io::Result<Vec<Candidate>> {
    // Without this file, no disk would seem to be in use.
    fs::metadata(proc.join("self/mountinfo"))?;
    let usage = Usage::read(sys, proc);
    let medium = BootMedium::of(sys, proc)?;
    let mut candidates: Vec<Candidate> = block_devices(sys)
        .into_iter()
        .map(|disk| {
            let is_layer = is_layer(&disk);
            let found = medium.look_at(&disk.path, is_layer);
            // The boot medium is checked first, even before mounts, because it is never taken down.
            let in_use = match found {
                Found::BootedFrom => Some("slipway booted from it".to_owned()),
                _ if is_operating_system => None,
                _ => usage.of(&disk.path),
            };
            let boot_medium = if let Found::Made(mark) = found { Some(mark) } else { None };
            Candidate { disk, in_use, by_name_only: is_layer, boot_medium }
        })
        .collect();
    share(&mut candidates);
    Ok(candidates)
}

/// Applies what uses a disk or marks it as a boot medium to every path to that disk.
fn share(candidates: &mut [Candidate]) {
    let told: Vec<Candidate> =
        candidates.iter().filter(|one| one.in_use.is_some() || one.boot_medium.is_some()).cloned().collect();
    for candidate in candidates {
        let others = || {
            let is_other = |other: &&Candidate| {
                other.disk.path != candidate.disk.path && other.disk.best_path() == candidate.disk.best_path()
            };
            told.iter().filter(is_other)
        };
        let by_way = |other: &Candidate, what: &Option<String>| {
            Some(format!("{}, and {} is another path to it", what.as_ref()?, other.disk.path))
        };
        let in_use = others().find_map(|other| by_way(other, &other.in_use));
        let boot_medium = others().find_map(|other| by_way(other, &other.boot_medium));
        candidate.in_use = candidate.in_use.take().or(in_use);
        candidate.boot_medium = candidate.boot_medium.take().or(boot_medium);
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Disk;

    use super::*;
    use crate::disk::list::kind::why_no_disk;
    use crate::disk::list::paths_to;
    use crate::text::folder;

    #[test]
    fn each_kind_of_block_device_is_a_disk_or_a_layer_or_refused() {
        let layer = Err("a layer");
        let (memory, flash) =
            ("a disk in memory; slipway never writes to one", "a flash chip; slipway never writes to one");
        let optical = "an optical drive; slipway never writes to one";
        let boot = "an eMMC boot partition, which may contain the board's firmware; slipway never writes to one";
        let nothing = "a device without a size: nothing is connected to it";
        for (name, files, expect) in [
            ("sda", &[("size", "8")][..], Ok("/dev/sda")),
            ("sdaa", &[("size", "8")], Ok("/dev/sdaa")),
            ("vda", &[("size", "8")], Ok("/dev/vda")),
            ("xvda", &[("size", "8")], Ok("/dev/xvda")),
            ("hda", &[("size", "8")], Ok("/dev/hda")),
            ("nvme0n1", &[("size", "8")], Ok("/dev/nvme0n1")),
            ("nvme1n2", &[("size", "8")], Ok("/dev/nvme1n2")),
            ("mmcblk0", &[("size", "8")], Ok("/dev/mmcblk0")),
            ("pmem0", &[("size", "8")], Ok("/dev/pmem0")),
            ("rssda", &[("size", "8")], Ok("/dev/rssda")),
            ("cciss!c0d0", &[("size", "8")], Ok("/dev/cciss/c0d0")),
            // A USB bridge that shows sectors of 4096 bytes: sysfs counts 512 all the same.
            ("sdc", &[("size", "8"), ("queue/logical_block_size", "4096")], Ok("/dev/sdc")),
            ("sdd", &[("size", "8"), ("removable", "1")], Ok("/dev/sdd")),
            ("dm-0", &[("size", "8")], layer),
            ("md127", &[("size", "8")], layer),
            ("md_system", &[("size", "8")], layer),
            ("loop0", &[("size", "8")], layer),
            ("bcache0", &[("size", "8")], layer),
            ("nbd0", &[("size", "8")], layer),
            ("rbd0", &[("size", "8")], layer),
            ("drbd0", &[("size", "8")], layer),
            ("zd0", &[("size", "8")], layer),
            ("ublkb0", &[("size", "8")], layer),
            ("nullb0", &[("size", "8")], layer),
            ("etherd!e0.0", &[("size", "8")], layer),
            ("zram0", &[("size", "8")], Err(memory)),
            ("ram0", &[("size", "8")], Err(memory)),
            ("mtdblock0", &[("size", "8")], Err(flash)),
            ("fd0", &[("size", "8")], Err("a floppy drive; slipway never writes to one")),
            ("sr0", &[("size", "8")], Err(optical)),
            ("sr1", &[("size", "0"), ("removable", "1")], Err(optical)),
            ("mmcblk0boot0", &[("size", "8")], Err(boot)),
            ("mmcblk0rpmb", &[("size", "8")], Err(boot)),
            (
                "nvme0c0n1",
                &[("size", "8"), ("hidden", "1")],
                Err("one path to an NVMe namespace; give the device of the namespace itself"),
            ),
            ("sde", &[("size", "0"), ("removable", "1")], Err("a drive without a medium")),
            ("sdf", &[("size", "0")], Err(nothing)),
            ("nbd1", &[("size", "0")], Err(nothing)),
        ] {
            let files: Vec<(String, &str)> =
                files.iter().map(|(file, text)| (format!("block/{name}/{file}"), *text)).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
            let sys = folder(&[&files[..], &[("self/mountinfo", "")]].concat());
            let path = format!("/dev/{}", name.replace('!', "/"));
            let listed = candidates(sys.path(), sys.path(), true).expect("candidates");
            let found = match listed.as_slice() {
                [one] if one.by_name_only => Err("a layer".to_owned()),
                [one] => Ok(one.disk.path.clone()),
                _ => Err(why_no_disk(sys.path(), &path).unwrap_or_default()),
            };
            assert_eq!(found, expect.map(str::to_owned).map_err(str::to_owned), "{name}");
            if let [one] = listed.as_slice() {
                assert_eq!((one.disk.size, why_no_disk(sys.path(), &path)), (4096, None), "{name}");
            }
        }
        assert_eq!(why_no_disk(Path::new("/nowhere"), "/dev/sda"), None);
    }

    #[test]
    fn two_paths_to_one_disk_are_known_by_its_name() {
        let sys = folder(&[
            ("block/sda/size", "8\n"),
            ("block/sda/device/wwid", "naa.5000c500a1b2c3d4\n"),
            ("block/sdb/size", "8\n"),
            ("block/sdb/device/wwid", "naa.5000c500a1b2c3d4\n"),
            ("block/sdb/holders/dm-0/x", ""),
            ("block/sdc/size", "8\n"),
            ("block/sdc/serial", "0123456789ABCDEF\n"),
            ("block/sdd/size", "8\n"),
            ("block/sdd/serial", "0123456789ABCDEF\n"),
            ("self/mountinfo", ""),
        ]);
        let found = candidates(sys.path(), sys.path(), false).expect("candidates");
        let known: Vec<(Option<&str>, Option<&str>)> =
            found.iter().map(|one| (one.disk.other_path_to.as_deref(), one.in_use.as_deref())).collect();
        let held = "/dev/sdb is held by dm-0";
        let by_way = format!("{held}, and /dev/sdb is another path to it");
        assert_eq!(known, [(None, Some(by_way.as_str())), (Some("/dev/sda"), Some(held)), (None, None), (None, None)]);
        assert_eq!(paths_to(sys.path(), "/dev/sdb"), ["/dev/sdb", "/dev/sda"]);
        assert_eq!(paths_to(sys.path(), "/dev/sdc"), ["/dev/sdc"]);
        assert_eq!(paths_to(sys.path(), "/dev/dm-7"), ["/dev/dm-7"]);
    }

    #[test]
    fn a_disk_in_use_says_by_what() {
        let sys = folder(&[
            ("block/sda/size", "8\n"),
            ("block/sda/dev", "8:0\n"),
            ("block/sda/sda1/partition", "1\n"),
            ("block/sda/sda1/dev", "8:1\n"),
            ("block/sdb/size", "8\n"),
            ("block/sdb/holders/md0/x", ""),
            ("block/sdc/size", "8\n"),
            ("block/sdc/sdc2/partition", "2\n"),
            ("block/sdd/size", "8\n"),
            ("block/sdd/dev", "8:48\n"),
            (
                "self/mountinfo",
                "26 1 8:1 / /srv/data rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
              27 1 0:40 / /srv/pool rw - btrfs /dev/sde rw\n\
              28 1 8:1 /part /run/part rw - ext4 /dev/sda1 rw\n",
            ),
            ("block/sde/size", "8\n"),
            ("swaps", "Filename Type Size Used Priority\n/dev/sdc2 partition 1 0 -2\n"),
        ]);
        let taken_down = candidates(sys.path(), sys.path(), true).expect("candidates");
        assert!(taken_down.iter().all(|candidate| candidate.in_use.is_none()), "{taken_down:?}");
        let found = candidates(sys.path(), sys.path(), false).expect("candidates");
        let in_use: Vec<Option<&str>> = found.iter().map(|candidate| candidate.in_use.as_deref()).collect();
        let expect = [
            Some("/dev/sda1 is mounted at /srv/data, /dev/sda1 is mounted at /run/part"),
            Some("/dev/sdb is held by md0"),
            Some("/dev/sdc2 is used as swap"),
            None,
            Some("/dev/sde is mounted at /srv/pool"),
        ];
        assert_eq!(in_use, expect);
    }

    #[test]
    fn what_one_path_shows_of_a_disk_holds_for_all() {
        let disk = |path: &str, other: Option<&str>| Disk {
            path: path.to_owned(),
            other_path_to: other.map(str::to_owned),
            ..Disk::default()
        };
        let disks = [disk("/dev/sda", None), disk("/dev/sdb", Some("/dev/sda")), disk("/dev/sdc", None)];
        let as_candidate = |disk| Candidate { disk, in_use: None, by_name_only: false, boot_medium: None };
        let mut candidates: Vec<Candidate> = disks.into_iter().map(as_candidate).collect();
        candidates[1].in_use = Some("/dev/sdb1 is mounted at /".to_owned());
        candidates[1].boot_medium = Some("it has the label SLIPWAY".to_owned());
        share(&mut candidates);
        let by_way = |what: &str| Some(format!("{what}, and /dev/sdb is another path to it"));
        assert_eq!(candidates[0].in_use, by_way("/dev/sdb1 is mounted at /"));
        assert_eq!(candidates[0].boot_medium, by_way("it has the label SLIPWAY"));
        assert_eq!(candidates[1].in_use.as_deref(), Some("/dev/sdb1 is mounted at /"));
        assert_eq!((&candidates[2].in_use, &candidates[2].boot_medium), (&None, &None));
    }
}
