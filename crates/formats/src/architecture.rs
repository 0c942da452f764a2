//! The architecture that an image is for, by its partition types and the programs for UEFI firmware in it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use slipway_protocol::workflow::partition_types;

use crate::efi::device_path::guid_text;
use crate::fat::read::{Files, Found};
use crate::partition_table::{Kind, Partition, ReadAt, Table};
use crate::pe::Headers;

/// A part of an image that is for one architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The architecture, as uname(2) names it: `x86_64`, `aarch64`.
    pub architecture: String,
    /// The part, in words: "by the type of partition 1", or "by" and the path of a program.
    pub what: String,
}

/// Types of root and /usr partitions (The Discoverable Partitions Specification), with their architectures.
const TYPES: [(&str, &str); 18] = [
    (partition_types::ROOT_X86_64, "x86_64"),
    (partition_types::USR_X86_64, "x86_64"),
    (partition_types::ROOT_ARM64, "aarch64"),
    (partition_types::USR_ARM64, "aarch64"),
    ("44479540-f297-41b2-9af7-d131d5f0458a", "i686"),
    ("75250d76-8cc6-458e-bd66-bd47cc81a812", "i686"),
    ("69dad710-2ce4-4e3c-b16c-21a1d49abed3", "arm"),
    ("7d0359a3-02b3-4f0a-865c-654403e70625", "arm"),
    ("72ec70a6-cf74-40e6-bd49-4bda08e8f224", "riscv64"),
    ("beaec34b-8442-439b-a40b-984381ed097d", "riscv64"),
    ("77055800-792c-4f94-b39a-98c91b762bb6", "loongarch64"),
    ("e611c702-575c-4cbe-9a46-434fa0bf7e3f", "loongarch64"),
    ("c31c45e6-3f39-412e-80fb-4809c4980599", "ppc64le"),
    ("15bb03af-77e7-4d4a-b12b-c0d084f7491c", "ppc64le"),
    ("5eead9a9-fe09-4a1e-a1d7-520d00531306", "s390x"),
    ("8a4f5770-50aa-4ed3-874a-99b710db6fea", "s390x"),
    ("993d8d3d-f80e-4225-855a-9daf8ed7ea97", "ia64"),
    ("4301d2a6-4e3b-4b2a-bb94-9e0b2c4225ea", "ia64"),
];
/// Machine types of EFI programs (PE Format, "Machine Types").
const MACHINES: [(u16, &str); 7] = [
    (0x8664, "x86_64"),
    (0xAA64, "aarch64"),
    (0x014C, "i686"),
    (0x01C2, "arm"),
    (0x5064, "riscv64"),
    (0x6264, "loongarch64"),
    (0x0200, "ia64"),
];
/// Types of MBR partitions with a FAT file system.
const FAT_TYPES: [u8; 7] = [0x01, 0x04, 0x06, 0x0B, 0x0C, 0x0E, 0xEF];
/// The folder below which firmware and systems have their boot loaders (UEFI specification, 13.3.1.3).
const EFI: &str = "EFI";
/// Bytes of a program that hold its headers.
const HEAD: usize = 4096;
/// Limits of the search: file systems of an image, folders of each, and programs in all folders of each. A usual image
/// has one file system with three folders. A damaged one can have more than can be read.
const MAX_FILE_SYSTEMS: usize = 4;
const MAX_FOLDERS: usize = 64;
const MAX_PROGRAMS: usize = 256;

/// Finds the architectures that an image is for: none, one, or several if the image starts on several. Only the first
/// evidence of each architecture counts. `read` reads the image; bytes that it does not know are no evidence.
pub fn evidence(table: &Table, read: &mut ReadAt<'_>) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = table.partitions.iter().filter_map(by_type).collect();
    for start in fat_file_systems(table).into_iter().take(MAX_FILE_SYSTEMS) {
        let mut within = |offset: u64, len: usize| read(start.checked_add(offset)?, len);
        if let Some(mut files) = Files::open(&mut within) {
            found.extend(programs(&mut files));
        }
    }
    let mut known = BTreeSet::new();
    found.retain(|evidence| known.insert(evidence.architecture.clone()));
    found
}

/// Why a machine of this architecture, as uname(2) names it, cannot start an image. None if it can, or if that is not
/// certain.
pub fn mismatch(evidence: &[Evidence], machine: &str) -> Option<String> {
    let first = evidence.first()?;
    if evidence.iter().any(|evidence| runs(machine, &evidence.architecture)) {
        return None;
    }
    let Evidence { architecture, what } = first;
    let (image, machine) = (usual_name(architecture), usual_name(machine));
    Some(format!("the image is for {image} ({what}), but the machine is {machine}; use an image for {machine}"))
}

/// Whether a machine runs programs of an architecture, or that is not certain. Both are named as in uname(2).
pub fn runs(machine: &str, architecture: &str) -> bool {
    match machine {
        // These processors run the older 32-bit architecture, too.
        "x86_64" => matches!(architecture, "x86_64" | "i686"),
        "aarch64" => matches!(architecture, "aarch64" | "arm"),
        // What other processors also run is not known here.
        _ => true,
    }
}

/// The name that distributions use for an architecture, which may differ from that of uname(2).
pub fn usual_name(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "x86-64",
        "aarch64" => "arm64",
        "i686" => "x86",
        other => other,
    }
}

fn by_type(partition: &Partition) -> Option<Evidence> {
    let (kind, _) = partition.guids.as_ref()?;
    let kind = guid_text(kind);
    let (_, architecture) = TYPES.iter().find(|(guid, _)| *guid == kind)?;
    let what = format!("by the type of {}", partition.describe());
    Some(Evidence { architecture: (*architecture).to_owned(), what })
}

/// Byte offsets of the file systems in which firmware looks for boot loaders.
fn fat_file_systems(table: &Table) -> Vec<u64> {
    let is_fat = |partition: &&Partition| match &partition.guids {
        Some((kind, _)) => guid_text(kind) == partition_types::ESP,
        None => FAT_TYPES.contains(&partition.mbr_type),
    };
    match table.kind {
        Kind::BootSector => vec![0],
        _ => table.partitions.iter().filter(is_fat).map(|partition| partition.bytes.start).collect(),
    }
}

/// Reads the architectures of the programs in the folders of boot loaders, as far as they are known.
fn programs(files: &mut Files<'_, '_>) -> Vec<Evidence> {
    let (mut found, mut left) = (Vec::new(), MAX_PROGRAMS);
    let folders = files.list(EFI).unwrap_or_default();
    for folder in folders.iter().filter(|folder| folder.is_folder).take(MAX_FOLDERS) {
        let is_program = |file: &Found| !file.is_folder && file.name.to_ascii_lowercase().ends_with(".efi");
        let programs = files.within(folder).unwrap_or_default().into_iter().filter(is_program);
        for file in programs.take(left) {
            left -= 1;
            let what = format!("by {EFI}/{}/{}", folder.name, file.name);
            found.extend(of_program(&file, files).map(|architecture| Evidence { architecture, what }));
        }
    }
    found
}

/// The architecture of a program by its header, or else by the name under which firmware starts it.
fn of_program(file: &Found, files: &mut Files<'_, '_>) -> Option<String> {
    let by_header = files.head(file, HEAD).and_then(|head| Headers::read(&head));
    let name = file.name.to_ascii_lowercase();
    let by_name = || match name.as_str() {
        "bootx64.efi" => Some("x86_64"),
        "bootaa64.efi" => Some("aarch64"),
        "bootia32.efi" => Some("i686"),
        "bootarm.efi" => Some("arm"),
        "bootriscv64.efi" => Some("riscv64"),
        "bootloongarch64.efi" => Some("loongarch64"),
        _ => None,
    };
    match by_header {
        Some(headers) => {
            MACHINES.iter().find(|(known, _)| *known == headers.machine).map(|(_, name)| (*name).to_owned())
        }
        None => by_name().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fat::{File, Kind as FatKind, Volume};

    fn table(kind: Kind, partitions: Vec<Partition>) -> Table {
        Table { kind, block: 512, block_is_certain: false, partitions, remarks: Vec::new() }
    }

    fn typed(number: u32, guid: &str, start: u64) -> Partition {
        let digits: String = guid.chars().filter(char::is_ascii_hexdigit).collect();
        let mut bytes = u128::from_str_radix(&digits, 16).unwrap().to_be_bytes();
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Partition { number, bytes: start..start + 512, guids: Some((bytes, [1; 16])), ..Partition::default() }
    }

    /// The headers of a program for this machine type, without content.
    fn program(machine: u16) -> Vec<u8> {
        let mut program = vec![0; 0x80];
        program[..2].copy_from_slice(b"MZ");
        program[0x3C] = 0x40;
        program[0x40..0x44].copy_from_slice(b"PE\0\0");
        program[0x44..0x46].copy_from_slice(&machine.to_le_bytes());
        program
    }

    /// The evidence in a FAT file system with these files, of which only the first `known` bytes can be read.
    fn shown(files: &[(&str, &[u8])], known: usize) -> Vec<(String, String)> {
        let files: Vec<File> = files.iter().map(|(path, content)| File { path, content }).collect();
        let (kind, sector, len) = (FatKind::Fat12, 512, 4 << 20);
        let volume = Volume { kind, sector, len, hidden: 0, id: 1, label: "ESP", files: &files };
        let mut bytes = volume.make().unwrap().to_bytes();
        bytes.truncate(known);
        let table = table(Kind::Unknown, vec![typed(1, partition_types::ESP, 0)]);
        let mut read = |at: u64, len: usize| bytes.get(at as usize..)?.get(..len).map(<[u8]>::to_vec);
        let found = evidence(&table, &mut read).into_iter();
        found.map(|found| (found.architecture, found.what)).collect()
    }

    #[test]
    fn boot_loaders_show_an_architecture() {
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let (x64, arm64) = (program(0x8664), program(0xAA64));
        let all = usize::MAX;
        for (files, known, expect) in [
            (&[("EFI/BOOT/BOOTX64.EFI", &x64[..])][..], all, vec![pair("x86_64", "by EFI/BOOT/BOOTX64.EFI")]),
            (&[("EFI/debian/grubaa64.efi", &arm64)], all, vec![pair("aarch64", "by EFI/debian/grubaa64.efi")]),
            // The name counts if the program's header cannot be read.
            (&[("EFI/BOOT/BOOTAA64.EFI", &x64)], all, vec![pair("x86_64", "by EFI/BOOT/BOOTAA64.EFI")]),
            (&[("EFI/BOOT/BOOTAA64.EFI", b"?")], all, vec![pair("aarch64", "by EFI/BOOT/BOOTAA64.EFI")]),
            (&[("EFI/BOOT/FBX64.EFI", b"?"), ("EFI/BOOT/GRUB.CFG", b"set")], all, vec![]),
            (&[("BOOTX64.EFI", &x64)], all, vec![]),
            (&[("EFI/BOOT/BOOTX64.EFI", &program(0xEBC))], all, vec![]),
            (&[("EFI/BOOT/BOOTX64.EFI", &x64)], 600, vec![]),
        ] {
            assert_eq!(shown(files, known), expect, "{files:?}");
        }
        let both = shown(&[("EFI/BOOT/BOOTX64.EFI", &x64), ("EFI/BOOT/BOOTAA64.EFI", &arm64)], all);
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn folders_that_all_lead_to_one_do_not_multiply_the_work() {
        let program = program(0x8664);
        let paths: Vec<String> = (0..400).map(|n| format!("EFI/A/{n}.EFI")).collect();
        let folders: Vec<String> = (0..400).map(|n| format!("EFI/{n}/X")).collect();
        let file = |path| File { path, content: &program };
        let files: Vec<File> = paths.iter().chain(&folders).map(|path| file(path.as_str())).collect();
        let (kind, sector, len) = (FatKind::Fat12, 512, 16 << 20);
        let volume = Volume { kind, sector, len, hidden: 0, id: 1, label: "ESP", files: &files };
        let mut bytes = volume.make().unwrap().to_bytes();
        // Lets the 400 folders before A in EFI begin in the cluster in which A begins.
        let last = bytes.windows(11).position(|found| found == b"A          ").unwrap();
        let begin = last + 26..last + 28;
        (1..=400).for_each(|n| bytes.copy_within(begin.clone(), begin.start - n * 32));
        let table = table(Kind::Unknown, (1..=128).map(|n| typed(n, partition_types::ESP, 0)).collect());
        let mut reads = 0;
        let mut read = |at: u64, len: usize| {
            reads += 1;
            bytes.get(at as usize..)?.get(..len).map(<[u8]>::to_vec)
        };
        assert_eq!(evidence(&table, &mut read).len(), 1);
        assert!((100..3_000).contains(&reads), "{reads}");
    }

    #[test]
    fn a_machine_is_told_what_is_certainly_for_another() {
        let root = |guid: &str| evidence(&table(Kind::Unknown, vec![typed(3, guid, 0)]), &mut |_, _| None);
        let (x64, arm64) = (root(partition_types::ROOT_X86_64), root(partition_types::USR_ARM64));
        let refusal = "the image is for arm64 (by the type of partition 3), but the machine is x86-64; use an image \
                       for x86-64";
        assert_eq!(mismatch(&arm64, "x86_64").as_deref(), Some(refusal));
        assert!(mismatch(&x64, "aarch64").unwrap().starts_with("the image is for x86-64 ("));
        let riscv = root("72ec70a6-cf74-40e6-bd49-4bda08e8f224");
        assert!(mismatch(&riscv, "aarch64").unwrap().contains("for riscv64 ("));
        let x86 = root("44479540-f297-41b2-9af7-d131d5f0458a");
        let both = [x64.clone(), arm64.clone()].concat();
        for (evidence, machine) in [
            (&x64, "x86_64"),
            (&arm64, "aarch64"),
            (&both, "aarch64"),
            (&x86, "x86_64"),
            (&root(partition_types::LINUX), "aarch64"),
            (&x64, ""),
            (&x64, "riscv64"),
        ] {
            assert_eq!(mismatch(evidence, machine), None, "{evidence:?} {machine}");
        }
        assert!(mismatch(&x86, "aarch64").is_some());
    }
}
