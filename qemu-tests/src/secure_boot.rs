//! Machines with Secure Boot, and programs that were changed after they were signed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway_formats::pe::Sections;
use xtask::host::files;
use xtask::lab::bootable;
use xtask::lab::qemu::{Boot, MachineConfig};

use crate::bench::Bench;

/// Size of the image of a stick in bytes.
const STICK: u64 = 64 << 20;
/// Positions in a PE file (Microsoft, "PE Format"): of the field with the header's offset, and, from the header, of the
/// certificate table's entry in the data directories of a 64-bit program.
const HEADER_OFFSET: usize = 0x3c;
const SIGNATURES: usize = 24 + 112 + 4 * 8;

/// Configures a machine whose firmware has Secure Boot. Without keys it is in Setup Mode.
pub fn machine(bench: &Bench) -> MachineConfig {
    let disks = Vec::new();
    MachineConfig { boot: Boot::Uefi { uri: None }, secure_boot: true, disks, ..bench.machine() }
}

/// Makes the image of a stick with a program that firmware starts, and with `other` as the file FILLER.
pub fn stick(folder: &Path, name: &str, program: &[u8], other: &[u8]) -> Result<PathBuf> {
    let (file, image) = (folder.join(name).with_extension("efi"), folder.join(name).with_extension("img"));
    files::write(&file, program)?;
    bootable::make(&image, STICK, &file, other)?;
    Ok(image)
}

/// Returns the program without its signature.
pub fn unsigned(signed: &[u8]) -> Result<Vec<u8>> {
    let mut program = signed.to_vec();
    let header = number(&program, HEADER_OFFSET)?;
    let entry = program.get_mut(header + SIGNATURES..header + SIGNATURES + 8).context("the signatures' entry")?;
    let at = u32::from_le_bytes(entry[..4].try_into()?) as usize;
    anyhow::ensure!(at != 0, "the program is not signed");
    entry.fill(0);
    program.truncate(at);
    Ok(program)
}

/// Returns the program with one bit changed in the middle of a section.
pub fn changed(program: &[u8], section: &str) -> Result<Vec<u8>> {
    let found = Sections::read(program).and_then(|sections| sections.first(section));
    let found = found.with_context(|| format!("the section {section}"))?;
    let mut program = program.to_vec();
    let middle = found.offset as usize + found.len as usize / 2;
    *program.get_mut(middle).with_context(|| format!("the section {section} in the file"))? ^= 1;
    Ok(program)
}

fn number(bytes: &[u8], at: usize) -> Result<usize> {
    Ok(u32::from_le_bytes(bytes.get(at..at + 4).context("a number")?.try_into()?) as usize)
}
