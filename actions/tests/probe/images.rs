//! Images made by the programs that operators use, or byte by byte where those programs need a kernel driver.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::crafted::{self, KIB, MIB, Pieces};

/// How an image is made.
pub enum Recipe {
    /// With a command of the shell. `FILE` stands for the image, `TREE` for a folder with a file, `TREE/file` for that
    /// file, `UUID` for an identity.
    Program(&'static str),
    /// From bytes, given the size of the image.
    Bytes(fn(u64) -> Pieces),
}

/// Name, expected kind, size in bytes, recipe, and the ranges that are read: start and length. A negative start counts
/// from the end.
pub struct Image(pub &'static str, pub &'static str, pub u64, pub Recipe, pub &'static [(i64, u64)]);

impl Image {
    /// Makes the image. Returns false, with a message on standard error, if the program is not installed.
    pub fn make(&self, path: &Path) -> bool {
        File::create(path).unwrap().set_len(self.2).unwrap();
        self.add_to(path)
    }

    /// The same in an existing file.
    pub fn add_to(&self, path: &Path) -> bool {
        match &self.3 {
            Recipe::Program(command) => run(self.0, command, path),
            Recipe::Bytes(bytes) => {
                let file = File::options().write(true).open(path).unwrap();
                for (offset, bytes) in bytes(file.metadata().unwrap().len()) {
                    file.write_all_at(&bytes, offset).unwrap();
                }
                true
            }
        }
    }

    /// The ranges that are read, for an image of this size.
    pub fn superblocks(&self, size: u64) -> Vec<Range<u64>> {
        let start = |at: i64| if at < 0 { size - at.unsigned_abs() } else { at.unsigned_abs() };
        let ranges = self.4.iter().map(|(at, len)| start(*at)..(start(*at) + len).min(size));
        ranges.filter(|range| !range.is_empty()).collect()
    }
}

fn run(name: &str, command: &str, path: &Path) -> bool {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("file"), [7; 32 << 10]).unwrap();
    let (path, tree) = (path.to_str().unwrap(), tree.path().to_str().unwrap());
    let command =
        command.replace("FILE", path).replace("TREE", tree).replace("UUID", "01234567-89ab-4cde-8f01-23456789abcd");
    let output = Command::new("sh").args(["-c", &command]).env("LC_ALL", "C.UTF-8").output().unwrap();
    if output.status.code() == Some(127) {
        eprintln!("not checked: {name}, because {command:?} is not installed");
        return false;
    }
    assert!(output.status.success(), "{command}: {output:?}");
    true
}

pub fn run_with_input(command: &mut Command, input: &str) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}");
}

pub fn all() -> Vec<Image> {
    by_programs().into_iter().chain(crafted::images()).collect()
}

fn by_programs() -> [Image; 25] {
    use Recipe::Program;
    const EXT: &[(i64, u64)] = &[(KIB + 0x50, 0x118)];
    const FAT: &[(i64, u64)] = &[(0, 96), (0x1BE, 66)];
    const FAT32: &[(i64, u64)] = &[(0, 96), (0x1BE, 66), (512, 4), (996, 4), (0x9_E400, 32)];
    const SWAP: &[(i64, u64)] = &[(KIB, 64), (KIB + 160, 24), (4086, 10)];
    const NTFS: &[(i64, u64)] = &[(0, 96), (4 * 4096, 48), (4 * 4096 + 3 * 1024, 400)];
    const JOLIET: &[(i64, u64)] = &[(0x8000, 90), (0x8000 + 800, 48), (0x8800, 90)];
    const BRIDGE: &[(i64, u64)] = &[(0x8000, 90), (256 * 2048, 32), (32 * 2048, 240)];
    const UDF: &[(i64, u64)] = &[(0x8000, 8), (0x8800, 8), (256 * 512, 32), (512 * 96, 240)];
    const LUKS1: &str = "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 FILE TREE/file";
    const LUKS2: &str = "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \
                         --label secrets FILE TREE/file";
    [
        Image("ext4", "ext4", 8 * MIB, Program("mkfs.ext4 -q -U UUID -L root-a FILE"), EXT),
        Image("ext3", "ext3", 8 * MIB, Program("mkfs.ext3 -q FILE"), EXT),
        Image("ext2", "ext2", 8 * MIB, Program("mkfs.ext2 -q -L 'a label with spac' FILE"), EXT),
        Image("ext-floppy", "ext2", MIB, Program("mkfs.ext2 -q FILE"), EXT),
        Image("jbd", "jbd", 8 * MIB, Program("mke2fs -q -O journal_dev -L journal FILE"), EXT),
        Image("vfat-32", "vfat", 40 * MIB, Program("mkfs.vfat -F 32 -n ESP -i 1234ABCD FILE"), FAT32),
        Image("vfat-16", "vfat", 16 * MIB, Program("mkfs.vfat -F 16 FILE"), FAT),
        Image("vfat-12", "vfat", 2 * MIB, Program("mkfs.vfat -F 12 -n DATEN FILE"), FAT),
        Image("vfat-floppy", "vfat", 1440 << 10, Program("mkfs.vfat -n 'DISK 1' FILE"), FAT),
        Image("xfs", "xfs", 320 * MIB, Program("mkfs.xfs -q -L data FILE"), &[(0, 160)]),
        Image("btrfs", "btrfs", 128 * MIB, Program("mkfs.btrfs -q -L pool FILE"), &[(64 * KIB, 310)]),
        Image("swap", "swap", 4 * MIB, Program("mkswap -q -L swap -U UUID FILE"), SWAP),
        Image("swap-64k", "swap", 4 * MIB, Program("mkswap -q -p 65536 FILE"), &[(KIB, 64), (65_526, 10)]),
        Image("exfat", "exfat", 8 * MIB, Program("mkfs.exfat -L Länge FILE"), &[(0, 120), (512, 16)]),
        Image("ntfs", "ntfs", 8 * MIB, Program("mkfs.ntfs -q -F -f -L Windöws FILE"), NTFS),
        Image("f2fs", "f2fs", 64 * MIB, Program("mkfs.f2fs -q -l flash FILE"), &[(KIB, 160)]),
        Image("erofs", "erofs", 0, Program("mkfs.erofs --quiet -U UUID FILE TREE"), &[(KIB, 128)]),
        Image("squashfs", "squashfs", 0, Program("mksquashfs TREE FILE -quiet -no-progress -noappend"), &[(0, 96)]),
        Image("iso9660", "iso9660", 0, Program("genisoimage -quiet -J -V 'My unicode label' -o FILE TREE"), JOLIET),
        Image(
            "iso9660-plain",
            "iso9660",
            0,
            Program("genisoimage -quiet -V INSTALL_MEDIUM -o FILE TREE"),
            &JOLIET[..2],
        ),
        Image("iso9660-udf", "udf", 0, Program("genisoimage -quiet -udf -J -V Bridge -o FILE TREE"), BRIDGE),
        Image("udf", "udf", 8 * MIB, Program("mkudffs --utf8 --label=Ünï FILE"), UDF),
        Image("luks1", "crypto_LUKS", 4 * MIB, Program(LUKS1), &[(0, 216)]),
        Image("luks2", "crypto_LUKS", 20 * MIB, Program(LUKS2), &[(0, 216), (0x4000, 16)]),
        Image("verity", "DM_verity_hash", 2 * MIB, Program("veritysetup format TREE/file FILE"), &[(0, 64)]),
    ]
}
