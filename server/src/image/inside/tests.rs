use std::fs;
use std::io;
use std::process::Command;

use super::*;

const DS_IDENTIFY: &str = "root/etc/cloud/ds-identify.cfg";

/// An ext4 file system with the files that are looked for, changed by the script `change`. `None` if mke2fs is missing.
fn made(options: &str, change: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir -p root/boot/loader/entries root/etc/cloud/cloud.cfg.d root/var/lib
         printf 'title x\\nlinux /v\\noptions root=/dev/vda1 ds=Ec2\\n' >root/boot/loader/entries/x.conf
         echo ID=x >root/etc/os-release-of-x; ln -s os-release-of-x root/etc/os-release
         seq 9000 | sed 's/^/#/' >root/etc/cloud/cloud.cfg
         for n in $(seq 200); do echo a: $n >root/etc/cloud/cloud.cfg.d/$n-of-many-files.cfg; done
         {change}
         mke2fs -q -F {options} -d root image 4M"
    );
    let done = Command::new("sh").args(["-ec", &script]).current_dir(folder.path()).output().unwrap();
    if done.status.code() == Some(127) {
        eprintln!("not checked: mke2fs is not installed");
        return None;
    }
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(fs::read(folder.path().join("image")).unwrap())
}

fn judged(image: Vec<u8>) -> Result<Inside, Unknown> {
    let bytes = 0..image.len() as u64;
    judged_with(image, &[Partition { number: 1, bytes, ..Partition::default() }])
}

fn judged_with(image: Vec<u8>, partitions: &[Partition]) -> Result<Inside, Unknown> {
    let len = image.len() as u64;
    let read = move |at: u64, buffer: &mut [u8]| {
        let found = image.get(at as usize..at as usize + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    };
    let source = Rc::new(Source::new(Box::new(read), len, Instant::now() + LONGEST));
    judge(partitions, &source)
}

#[test]
fn each_kind_of_ext_is_looked_into() {
    for options in ["", "-t ext4 -b 4096", "-t ext3", "-t ext2 -b 1024 -O ^dir_index"] {
        let Some(image) = made(options, "") else { return };
        let found = judged(image).expect(options);
        assert_eq!(found.has_boot_loader, Some(true), "{options}");
        let cloud_init = found.cloud_init.expect(options);
        assert_eq!((cloud_init.parts.len(), cloud_init.boot.len()), (200, 1), "{options}");
        assert!(cloud_init.main.unwrap().text.ends_with("#9000\n") && cloud_init.boot[0].text.ends_with("ds=Ec2"));
    }
}

#[test]
fn the_root_is_the_one_that_machines_find() {
    let systems = ["one", "other"].map(|name| made(&format!("-L {name}"), &format!("echo {name} >{DS_IDENTIFY}")));
    let [Some(one), Some(other)] = systems else { return };
    let Some(data) = made("", "rm root/etc/os-release") else { return };
    for (all, names, expect) in [
        ([&one, &other], ["", ""], "one\n"),
        ([&one, &other], ["data", "my-Root"], "other\n"),
        ([&data, &other], ["root", ""], "other\n"),
    ] {
        let len = one.len() as u64;
        let partition = |(start, name): (u64, &str)| Partition {
            bytes: start * len..(start + 1) * len,
            name: name.to_owned(),
            ..Partition::default()
        };
        let partitions: Vec<Partition> = (0..).zip(names).map(partition).collect();
        let found = judged_with(all.map(Vec::as_slice).concat(), &partitions).unwrap();
        assert_eq!(found.cloud_init.unwrap().ds_identify.unwrap().text, expect, "{names:?}");
    }
}

#[test]
fn what_must_be_replayed_or_is_not_all_there_is_not_known() {
    let Some(image) = made("-t ext4 -O ^metadata_csum", "") else { return };
    let with = |at: usize, byte: u8| {
        let mut image = image.clone();
        image[at] |= byte;
        judged(image)
    };
    assert!(with(1024 + 96, 0).is_ok());
    assert_eq!(with(1024 + 96, 0x4), Err(Unknown), "its journal has changes");
    assert_eq!(with(1024 + 101, 0x10), Err(Unknown), "it is read-only");
    assert_eq!(with(1024 + 6, 1), Err(Unknown), "it is larger than its partition");
    assert_eq!(judged(image[..1 << 20].to_vec()), Err(Unknown));
}

#[test]
fn what_is_damaged_ends() {
    let Some(image) = made("-t ext4 -O ^metadata_csum", "") else { return };
    let places: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
    let mut state = 1_u32;
    for _ in 0..300 {
        let mut image = image.clone();
        for _ in 0..16 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            image[places[(state >> 4) as usize % places.len()]] = (state >> 24) as u8;
        }
        let _ = judged(image);
    }
}
