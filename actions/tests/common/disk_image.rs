//! Disk images with real partition tables and real file systems, made by the programs operators use.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::MIB;

/// Type GUIDs in the form sgdisk takes.
pub const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
pub const ROOT: &str = if cfg!(target_arch = "aarch64") {
    "B921B045-1DF0-41C3-AF44-4C6F280D3FAE"
} else {
    "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
};
pub const LINUX: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";

/// A partition of an image: its place in MiB, its type and name, and the file tree in its ext4 file system.
pub struct Part<'a> {
    pub mib: std::ops::Range<usize>,
    pub type_guid: &'a str,
    pub name: &'a str,
    pub files: &'a [(&'a str, &'a str)],
}

/// Makes a GPT image of `size` MiB at a path.
pub fn make(path: &Path, size: usize, parts: &[Part]) {
    File::create(path).unwrap().set_len((size * MIB) as u64).unwrap();
    let mut sgdisk = Command::new("sgdisk");
    for (index, part) in parts.iter().enumerate() {
        let (number, mib) = (index + 1, &part.mib);
        sgdisk.arg(format!("--new={number}:{}:{}", mib.start * MIB / 512, mib.end * MIB / 512 - 1));
        sgdisk
            .arg(format!("--typecode={number}:{}", part.type_guid))
            .arg(format!("--change-name={number}:{}", part.name));
    }
    run(sgdisk.arg(path));
    for part in parts {
        make_ext4(path, part);
    }
}

fn make_ext4(path: &Path, part: &Part) {
    let tree = tempfile::tempdir().unwrap();
    for (file, content) in part.files {
        let file = tree.path().join(file);
        let folder = file.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        // Independent of the umask.
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(tree.path())) {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        match content.strip_prefix("-> ") {
            Some(target) => std::os::unix::fs::symlink(target, file).unwrap(),
            None => fs::write(file, content).unwrap(),
        }
    }
    let offset = format!("offset={}", part.mib.start * MIB);
    let blocks = format!("{}", (part.mib.end - part.mib.start) * 1024);
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-b", "1024", "-E", &offset, "-d"]).arg(tree.path()).arg(path).arg(blocks);
    run(&mut mkfs);
}

/// Rewrites the primary GPT of an image with 512-byte blocks to entries of 256 bytes, which the UEFI specification,
/// 5.3.2, allows.
pub fn widen_entries(image: &mut [u8]) {
    let entries: Vec<u8> =
        image[1024..1024 + 128 * 128].chunks(128).flat_map(|entry| [entry, &[0; 128]].concat()).collect();
    image[1024..1024 + entries.len()].copy_from_slice(&entries);
    let header = &mut image[512..604];
    header[40..48].copy_from_slice(&66_u64.to_le_bytes());
    header[84..88].copy_from_slice(&256_u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc(&entries).to_le_bytes());
    seal(header);
}

/// Sets the number of entries in the primary GPT of an image with 512-byte blocks.
pub fn claim_entries(image: &mut [u8], count: u32) {
    let header = &mut image[512..604];
    header[80..84].copy_from_slice(&count.to_le_bytes());
    seal(header);
}

fn seal(header: &mut [u8]) {
    header[16..20].fill(0);
    let sum = crc(header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Sets all feature bits of the ext4 file system at an offset in MiB, so that no kernel mounts it (fs/ext4/ext4.h,
/// s_feature_incompat). The bit of a journal device stays clear, because a journal device is no file system.
pub fn spoil(image: &Path, mib: usize) {
    let disk = File::options().write(true).open(image).unwrap();
    disk.write_all_at(&[0xF7, 0xFF, 0xFF, 0xFF], (mib * MIB + 1024 + 0x60) as u64).unwrap();
}

/// What debugfs answers to a request about the ext4 file system at an offset in MiB.
pub fn debugfs(image: &Path, mib: usize, request: &str) -> String {
    let target = format!("{}?offset={}", image.display(), mib * MIB);
    run(Command::new("debugfs").args(["-w", "-R", request, &target]))
}

/// Copies a host file into a folder of the ext4 file system at an offset in MiB.
pub fn write_file(image: &Path, mib: usize, from: &Path, to: &str) {
    debugfs(image, mib, &format!("write {} {to}", from.display()));
}

/// Copies a file from the ext4 file system at an offset in MiB to the host.
pub fn copy_file(image: &Path, mib: usize, from: &str, to: &Path) {
    debugfs(image, mib, &format!("dump {from} {}", to.display()));
}

/// A file in the ext4 file system at an offset in MiB, read by debugfs and not by the code under test: its content, and
/// mode, user and group as debugfs prints them. None if it does not exist.
pub fn read_file(image: &Path, mib: usize, file: &str) -> Option<(String, String)> {
    let target = format!("{}?offset={}", image.display(), mib * MIB);
    let debugfs = |request: String| {
        let output = Command::new("debugfs").args(["-R", &request, &target]).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (stat, missing) = debugfs(format!("stat {file}"));
    if missing.contains("File not found") {
        return None;
    }
    let words: Vec<&str> = stat.split_whitespace().collect();
    let after =
        |key: &str| words.iter().position(|word| *word == key).and_then(|at| words.get(at + 1)).unwrap().to_string();
    let owner = format!("{} {}:{}", after("Mode:"), after("User:"), after("Group:"));
    Some((debugfs(format!("cat {file}")).0, owner))
}

/// Sets an extended attribute of a file in the ext4 file system at an offset in MiB.
pub fn set_xattr(image: &Path, mib: usize, file: &str, name: &str, value: &str) {
    debugfs(image, mib, &format!("ea_set {file} {name} {value}"));
}

/// An extended attribute of a file in the ext4 file system at an offset in MiB. Empty if it is not set.
pub fn xattr(image: &Path, mib: usize, file: &str, name: &str) -> String {
    debugfs(image, mib, &format!("ea_get -V {file} {name}")).trim_end_matches(['\n', '\0']).to_owned()
}

/// Runs a program and returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether file systems in files can be mounted here. Prints why not.
pub fn can_mount() -> bool {
    let (root, loops) = (rustix::process::geteuid().is_root(), PathBuf::from("/dev/loop-control").exists());
    if !(root && loops) {
        eprintln!("not checked: mounting needs root ({root}) and loop devices ({loops})");
    }
    root && loops
}

/// Whether this kernel can also mount btrfs.
pub fn can_mount_btrfs() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let is_known = known.lines().any(|line| line.trim() == "btrfs");
    if !is_known {
        eprintln!("not checked: this kernel does not mount btrfs for us");
    }
    can_mount() && is_known
}

/// A PE file with only headers and these sections.
pub fn unified(sections: &[(&str, &str)]) -> String {
    let mut head = vec![0_u8; 1024];
    head[..2].copy_from_slice(b"MZ");
    head[0x3C] = 0x40;
    head[0x40..0x44].copy_from_slice(b"PE\0\0");
    head[0x46] = sections.len() as u8;
    let mut image = String::new();
    for (index, (name, content)) in sections.iter().enumerate() {
        let at = 0x58 + index * 40;
        head[at..at + name.len()].copy_from_slice(name.as_bytes());
        for (field, value) in [(8, content.len()), (16, content.len()), (20, 1024 + image.len())] {
            head[at + field..at + field + 4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        image.push_str(content);
    }
    // All bytes of the headers are ASCII as long as the contents are this short.
    assert!(head.is_ascii());
    String::from_utf8(head).unwrap() + &image
}
