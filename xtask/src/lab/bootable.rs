//! Disk images with a program that UEFI firmware starts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;

use crate::host::command::{command, run_quietly};
use crate::host::{files, packages};
use crate::lab::qemu::create_disk;

/// Offset of the EFI system partition in bytes.
const PARTITION: u64 = 1 << 20;
/// Minimum free space at the end of the partition's file system, in bytes.
pub const SLACK: u64 = 512 << 10;
/// Sectors per cylinder (heads times sectors per track). mformat needs a whole number of cylinders.
const TRACK: u64 = 64 * 32;
const SECTOR: u64 = 512;

/// Makes an image of `size` bytes, at least 64 MiB, with a GUID partition table and an EFI system partition (UEFI
/// specification, 13.3). The partition has the program at the path where firmware of its architecture looks, and a file
/// with the bytes of `filler`. Without a network, the network boot loader [`crate::lab::qemu::firmware::IPXE`] prints
/// its greeting and gives up.
pub fn make(image: &Path, size: u64, program: &Path, filler: &[u8]) -> Result<()> {
    packages::ensure(packages::TARGET_IMAGE)?;
    let removable = format!("::EFI/BOOT/BOOT{}.EFI", architecture(program)?.to_ascii_uppercase());
    create_disk(image, size)?;
    run_quietly(command("sgdisk", ["--new=1:2048:0", "--typecode=1:ef00"]).arg(image))?;
    // mtools takes a partition as the image's path and an offset.
    let partition = format!("{}@@{PARTITION}", image.display());
    let sectors = (size - 2 * PARTITION - SLACK) / SECTOR / TRACK * TRACK;
    let sectors = sectors.to_string();
    run_quietly(&mut command("mformat", ["-i", &partition, "-F", "-h", "64", "-s", "32", "-T", &sectors, "::"]))?;
    run_quietly(&mut command("mmd", ["-i", &partition, "::EFI", "::EFI/BOOT"]))?;
    run_quietly(command("mcopy", ["-i", &partition]).arg(program).arg(removable))?;
    if !filler.is_empty() {
        let file = image.with_extension("filler");
        files::write(&file, filler)?;
        run_quietly(command("mcopy", ["-i", &partition]).arg(&file).arg("::FILLER"))?;
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}

/// Reads the architecture from an EFI program's machine type ("PE Format", "Machine Types"). Returns it as firmware
/// spells it in file names.
fn architecture(program: &Path) -> Result<&'static str> {
    let bytes = files::read(program)?;
    let field = |at: usize, length: usize| {
        let field = bytes.get(at..at + length)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    // The DOS header points to the PE signature; the file header follows it.
    match field(0x3c, 4).and_then(|pe| field(pe + 4, 2)) {
        Some(0x8664) => Ok(Arch::X86_64.efi()),
        Some(0xaa64) => Ok(Arch::Aarch64.efi()),
        _ => bail!("reading {}: it is not an EFI program for x86-64 or arm64", program.display()),
    }
}
