//! Images made by the programs that operators use, or byte by byte where those programs need a kernel driver.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::crafted;

const KIB: i64 = 1024;
const MIB: u64 = 1 << 20;
const UUID: &str = "01234567-89ab-4cde-8f01-23456789abcd";

/// How an image is made.
pub enum Recipe {
    /// With a program. `FILE` stands for the image, `TREE` for a folder with a file, `TREE/file` for that file.
    Program(&'static [&'static str]),
    /// From bytes, given the size of the image.
    Bytes(fn(u64) -> Vec<(u64, Vec<u8>)>),
}

pub struct Image {
    pub name: &'static str,
    /// The expected kind.
    pub kind: Option<&'static str>,
    pub size: u64,
    pub recipe: Recipe,
    /// The ranges that are read: start and length. A negative start counts from the end.
    pub read: &'static [(i64, u64)],
}

impl Image {
    /// Makes the image. Returns false, with a message on standard error, if the program is not installed.
    pub fn make(&self, path: &Path) -> bool {
        File::create(path).unwrap().set_len(self.size).unwrap();
        self.add_to(path)
    }

    /// The same in an existing file.
    pub fn add_to(&self, path: &Path) -> bool {
        match &self.recipe {
            Recipe::Program(words) => run(self.name, words, path),
            Recipe::Bytes(bytes) => {
                let file = File::options().write(true).open(path).unwrap();
                for (offset, bytes) in bytes(file.metadata().unwrap().len()) {
                    file.write_all_at(&bytes, offset).unwrap();
                }
                true
            }
        }
    }

    /// The ranges in `read`, for an image of this size.
    pub fn superblocks(&self, size: u64) -> Vec<Range<u64>> {
        let start = |at: i64| if at < 0 { size - at.unsigned_abs() } else { at.unsigned_abs() };
        self.read
            .iter()
            .map(|(at, len)| start(*at)..(start(*at) + len).min(size))
            .filter(|range| !range.is_empty())
            .collect()
    }
}

fn run(name: &str, words: &[&str], path: &Path) -> bool {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("file"), [7; 32 << 10]).unwrap();
    let (path, tree) = (path.to_str().unwrap(), tree.path().to_str().unwrap());
    let words: Vec<String> = words.iter().map(|word| word.replace("FILE", path).replace("TREE", tree)).collect();
    let output = match Command::new(&words[0]).args(&words[1..]).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not checked: {name}, because {} is not installed", words[0]);
            return false;
        }
        Err(error) => panic!("{words:?}: {error}"),
    };
    assert!(output.status.success(), "{words:?}: {output:?}");
    true
}

pub fn run_with_input(command: &mut Command, input: &str) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}");
}

type Row = (&'static str, Option<&'static str>, u64, Recipe, &'static [(i64, u64)]);

pub fn all() -> Vec<Image> {
    let rows = [by_programs(), by_bytes()].into_iter().flatten();
    rows.map(|(name, kind, size, recipe, read)| Image { name, kind, size, recipe, read }).collect()
}

fn by_programs() -> Vec<Row> {
    use Recipe::Program;
    const EXT: &[(i64, u64)] = &[(KIB + 0x50, 0x118)];
    const FAT: &[(i64, u64)] = &[(0, 96), (0x1BE, 66)];
    const SWAP: &[(i64, u64)] = &[(KIB, 64), (KIB + 160, 24), (4086, 10)];
    vec![
        ("ext4", Some("ext4"), 8 * MIB, Program(&["mkfs.ext4", "-q", "-U", UUID, "-L", "root-a", "FILE"]), EXT),
        ("ext3", Some("ext3"), 8 * MIB, Program(&["mkfs.ext3", "-q", "FILE"]), EXT),
        ("ext2", Some("ext2"), 8 * MIB, Program(&["mkfs.ext2", "-q", "-L", "a label with spac", "FILE"]), EXT),
        ("ext-floppy", Some("ext2"), MIB, Program(&["mkfs.ext2", "-q", "FILE"]), EXT),
        ("jbd", Some("jbd"), 8 * MIB, Program(&["mke2fs", "-q", "-O", "journal_dev", "-L", "journal", "FILE"]), EXT),
        (
            "vfat-32",
            Some("vfat"),
            40 * MIB,
            Program(&["mkfs.vfat", "-F", "32", "-n", "ESP", "-i", "1234ABCD", "FILE"]),
            &[(0, 96), (0x1BE, 66), (512, 4), (996, 4), (0x9_E400, 32)],
        ),
        ("vfat-16", Some("vfat"), 16 * MIB, Program(&["mkfs.vfat", "-F", "16", "FILE"]), FAT),
        ("vfat-12", Some("vfat"), 2 * MIB, Program(&["mkfs.vfat", "-F", "12", "-n", "DATEN", "FILE"]), FAT),
        ("vfat-floppy", Some("vfat"), 1440 << 10, Program(&["mkfs.vfat", "-n", "DISK 1", "FILE"]), FAT),
        ("xfs", Some("xfs"), 320 * MIB, Program(&["mkfs.xfs", "-q", "-L", "data", "FILE"]), &[(0, 160)]),
        ("btrfs", Some("btrfs"), 128 * MIB, Program(&["mkfs.btrfs", "-q", "-L", "pool", "FILE"]), &[(64 * KIB, 310)]),
        ("swap", Some("swap"), 4 * MIB, Program(&["mkswap", "-q", "-L", "swap", "-U", UUID, "FILE"]), SWAP),
        (
            "swap-64k",
            Some("swap"),
            4 * MIB,
            Program(&["mkswap", "-q", "-p", "65536", "FILE"]),
            &[(KIB, 64), (65_526, 10)],
        ),
        ("exfat", Some("exfat"), 8 * MIB, Program(&["mkfs.exfat", "-L", "Länge", "FILE"]), &[(0, 120), (512, 16)]),
        (
            "ntfs",
            Some("ntfs"),
            8 * MIB,
            Program(&["mkfs.ntfs", "-q", "-F", "-f", "-L", "Windöws", "FILE"]),
            &[(0, 96), (4 * 4096, 48), (4 * 4096 + 3 * 1024, 400)],
        ),
        ("f2fs", Some("f2fs"), 64 * MIB, Program(&["mkfs.f2fs", "-q", "-l", "flash", "FILE"]), &[(KIB, 160)]),
        ("erofs", Some("erofs"), 0, Program(&["mkfs.erofs", "--quiet", "-U", UUID, "FILE", "TREE"]), &[(KIB, 128)]),
        (
            "squashfs",
            Some("squashfs"),
            0,
            Program(&["mksquashfs", "TREE", "FILE", "-quiet", "-no-progress", "-noappend"]),
            &[(0, 96)],
        ),
        (
            "iso9660",
            Some("iso9660"),
            0,
            Program(&["genisoimage", "-quiet", "-J", "-V", "My unicode label", "-o", "FILE", "TREE"]),
            &[(0x8000, 90), (0x8000 + 800, 48), (0x8800, 90)],
        ),
        (
            "iso9660-plain",
            Some("iso9660"),
            0,
            Program(&["genisoimage", "-quiet", "-V", "INSTALL_MEDIUM", "-o", "FILE", "TREE"]),
            &[(0x8000, 90), (0x8000 + 800, 48)],
        ),
        (
            "iso9660-udf",
            Some("udf"),
            0,
            Program(&["genisoimage", "-quiet", "-udf", "-J", "-V", "Bridge", "-o", "FILE", "TREE"]),
            &[(0x8000, 90), (256 * 2048, 32), (32 * 2048, 240)],
        ),
        (
            "udf",
            Some("udf"),
            8 * MIB,
            Program(&["mkudffs", "--utf8", "--label=Ünï", "FILE"]),
            &[(0x8000, 8), (0x8800, 8), (256 * 512, 32), (512 * 96, 240)],
        ),
        (
            "luks1",
            Some("crypto_LUKS"),
            4 * MIB,
            Program(&[
                "cryptsetup",
                "luksFormat",
                "-q",
                "--type",
                "luks1",
                "--pbkdf-force-iterations",
                "1000",
                "FILE",
                "TREE/file",
            ]),
            &[(0, 216)],
        ),
        (
            "luks2",
            Some("crypto_LUKS"),
            20 * MIB,
            Program(&[
                "cryptsetup",
                "luksFormat",
                "-q",
                "--type",
                "luks2",
                "--pbkdf",
                "pbkdf2",
                "--pbkdf-force-iterations",
                "1000",
                "--label",
                "secrets",
                "FILE",
                "TREE/file",
            ]),
            &[(0, 216), (0x4000, 16)],
        ),
        (
            "verity",
            Some("DM_verity_hash"),
            2 * MIB,
            Program(&["veritysetup", "format", "TREE/file", "FILE"]),
            &[(0, 64)],
        ),
    ]
}

fn by_bytes() -> Vec<Row> {
    use Recipe::Bytes;
    const MD1: u64 = 168;
    vec![
        ("swap-crafted", Some("swap"), 4 * MIB, Bytes(crafted::swap), &[(KIB, 64)]),
        ("swap-old", Some("swap"), 4 * MIB, Bytes(crafted::swap_old), &[(4086, 10)]),
        ("swap-big-endian", Some("swap"), 4 * MIB, Bytes(crafted::swap_big_endian), &[(KIB, 16)]),
        ("suspended", Some("swsuspend"), 4 * MIB, Bytes(crafted::suspended), &[(KIB, 44), (4086, 10)]),
        ("tux-on-ice", Some("swsuspend"), 4 * MIB, Bytes(crafted::tux_on_ice), &[(0, 8), (4086, 10)]),
        ("md-0.90", Some("linux_raid_member"), 8 * MIB, Bytes(crafted::md_0_90), &[(-64 * KIB, 64)]),
        (
            "md-0.90-big-endian",
            Some("linux_raid_member"),
            8 * MIB,
            Bytes(crafted::md_0_90_big_endian),
            &[(-64 * KIB, 64)],
        ),
        ("md-1.0", Some("linux_raid_member"), 8 * MIB, Bytes(crafted::md_1_0), &[(-8 * KIB, MD1)]),
        ("md-1.1", Some("linux_raid_member"), 8 * MIB, Bytes(crafted::md_1_1), &[(0, MD1)]),
        ("md-1.2", Some("linux_raid_member"), 8 * MIB, Bytes(crafted::md_1_2), &[(4096, MD1)]),
        ("ddf", Some("ddf_raid_member"), 8 * MIB, Bytes(crafted::ddf), &[(-512, 128), (-32 * 512, 8)]),
        ("ddf-257", Some("ddf_raid_member"), 8 * MIB, Bytes(crafted::ddf_257), &[(-257 * 512, 128)]),
        ("isw", Some("isw_raid_member"), 8 * MIB, Bytes(crafted::isw), &[(-1024, 40)]),
        ("lvm2", Some("LVM2_member"), 8 * MIB, Bytes(crafted::lvm2), &[(512, 72), (1000, 24)]),
        ("lvm2-sector-3", Some("LVM2_member"), 8 * MIB, Bytes(crafted::lvm2_sector_3), &[(1536, 72)]),
        ("bcache", Some("bcache"), 8 * MIB, Bytes(crafted::bcache), &[(4096, 64)]),
        ("vdo", Some("vdo"), 8 * MIB, Bytes(crafted::vdo), &[(0, 64)]),
        ("integrity", Some("DM_integrity"), 8 * MIB, Bytes(crafted::integrity), &[(0, 16)]),
        ("luks2-crafted", Some("crypto_LUKS"), 8 * MIB, Bytes(crafted::luks2), &[(0, 8)]),
        ("luks2-backup", Some("crypto_LUKS"), 8 * MIB, Bytes(crafted::luks2_backup), &[(0x8000, 216)]),
        ("bitlocker-vista", Some("BitLocker"), 8 * MIB, Bytes(crafted::bitlocker_vista), &[(0, 16)]),
        ("bitlocker-7", Some("BitLocker"), 8 * MIB, Bytes(crafted::bitlocker_7), &[(0, 72), (176, 8), (2 << 20, 12)]),
        (
            "bitlocker-to-go",
            Some("BitLocker"),
            8 * MIB,
            Bytes(crafted::bitlocker_to_go),
            &[(0, 16), (440, 8), (2 << 20, 12)],
        ),
        ("zfs", Some("zfs_member"), 64 * MIB, Bytes(crafted::zfs), &[(16 * KIB, 120), (128 * KIB, 8), (131 * KIB, 8)]),
        (
            "zfs-big-endian",
            Some("zfs_member"),
            64 * MIB,
            Bytes(crafted::zfs_big_endian),
            &[(-256 * KIB + 16 * KIB, 120)],
        ),
        ("xfs-log", Some("xfs_external_log"), 16 * MIB, Bytes(crafted::xfs_log), &[(4096, 320)]),
        ("ext4dev", Some("ext4dev"), 8 * MIB, Bytes(crafted::ext4dev), &[(KIB + 0x38, 0x38)]),
        ("f2fs-1.0", Some("f2fs"), 8 * MIB, Bytes(crafted::f2fs_1_0), &[(KIB, 8)]),
        ("squashfs3", Some("squashfs3"), 8 * MIB, Bytes(crafted::squashfs3), &[(0, 32)]),
        ("squashfs3-big-endian", Some("squashfs3"), 8 * MIB, Bytes(crafted::squashfs3_big_endian), &[(0, 32)]),
        ("high-sierra", Some("iso9660"), 8 * MIB, Bytes(crafted::high_sierra), &[(0x8000, 90)]),
    ]
}
