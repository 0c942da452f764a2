//! Disk images from which UEFI firmware starts a program.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::{command, run_quietly};
use crate::host;
use crate::qemu::create_disk;

/// Where the EFI system partition starts, in bytes.
const PARTITION: u64 = 1 << 20;
/// Least free space of the file system at the end of the partition, in bytes.
pub const SLACK: u64 = 512 << 10;
/// Heads times sectors per track. mformat needs a whole number of these.
const TRACK: u64 = 64 * 32;
const SECTOR: u64 = 512;

/// Makes an image of `size` bytes, at least 64 MiB: a GUID partition table and an EFI system partition (UEFI
/// specification, 13.3) with a program and a file of other bytes. Without a network, the network boot loader
/// [`crate::qemu::firmware::IPXE`] prints its greeting and gives up.
pub fn make(image: &Path, size: u64, program: &Path, filler: &[u8]) -> Result<()> {
    host::ensure(host::TARGET_IMAGE)?;
    create_disk(image, size)?;
    run_quietly(command("sgdisk", ["--new=1:2048:0", "--typecode=1:ef00"]).arg(image))?;
    // mtools names a partition by the image and its offset.
    let partition = format!("{}@@{PARTITION}", image.display());
    let sectors = (size - 2 * PARTITION - SLACK) / SECTOR / TRACK * TRACK;
    let sectors = sectors.to_string();
    run_quietly(&mut command("mformat", ["-i", &partition, "-F", "-h", "64", "-s", "32", "-T", &sectors, "::"]))?;
    run_quietly(&mut command("mmd", ["-i", &partition, "::EFI", "::EFI/BOOT"]))?;
    run_quietly(command("mcopy", ["-i", &partition]).arg(program).arg("::EFI/BOOT/BOOTX64.EFI"))?;
    if !filler.is_empty() {
        let file = image.with_extension("filler");
        fs::write(&file, filler).with_context(|| format!("writing {}", file.display()))?;
        run_quietly(command("mcopy", ["-i", &partition]).arg(&file).arg("::FILLER"))?;
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}
