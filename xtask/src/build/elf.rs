//! Reads just enough of ELF to tell which processor a program is for, and whether it needs a dynamic loader (System V
//! ABI, chapter 4, "ELF Header", and chapter 5, "Program Header" and "Dynamic Section"; 64 bit, little endian).

use slipway_parts::Arch;

const EM_X86_64: u64 = 62;
const EM_AARCH64: u64 = 183;

const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;

/// Says why a program is not a static program for this architecture. Returns `None` if it is.
pub fn why_not_static(file: &[u8], arch: Arch) -> Option<&'static str> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Some("it is not a 64-bit little-endian ELF file");
    }
    let machine = match arch {
        Arch::X86_64 => EM_X86_64,
        Arch::Aarch64 => EM_AARCH64,
    };
    if number(file, 18, 2) != Some(machine) {
        return Some("it is for another processor");
    }
    let Some(headers) = program_headers(file) else { return Some("its program headers are truncated") };
    for (kind, content) in headers {
        if kind == PT_INTERP {
            return Some("it asks for a dynamic loader (PT_INTERP)");
        }
        let needs = |entry: &[u8]| number(entry, 0, 8) == Some(DT_NEEDED);
        if kind == PT_DYNAMIC && content.chunks_exact(16).any(needs) {
            return Some("it needs a shared library (DT_NEEDED)");
        }
    }
    None
}

/// Returns type and file content of each segment.
fn program_headers(file: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let (table, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
    let header = |index: u64| {
        let header = file.get(usize::try_from(table + index * size).ok()?..)?;
        let (kind, offset, length) = (number(header, 0, 4)?, number(header, 8, 8)?, number(header, 32, 8)?);
        let start = usize::try_from(offset).ok()?;
        Some((kind, file.get(start..start.checked_add(usize::try_from(length).ok()?)?)?))
    };
    (0..count).map(header).collect()
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let field = bytes.get(at..at + length)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_the_host_is_dynamic() -> anyhow::Result<()> {
        let dynamic = std::fs::read("/proc/self/exe")?;
        let (own, other) = match Arch::X86_64.is_of_host() {
            true => (Arch::X86_64, Arch::Aarch64),
            false => (Arch::Aarch64, Arch::X86_64),
        };
        assert_eq!(why_not_static(&dynamic, own), Some("it asks for a dynamic loader (PT_INTERP)"));
        assert_eq!(why_not_static(&dynamic, other), Some("it is for another processor"));
        assert_eq!(why_not_static(&dynamic[..40], own), Some("its program headers are truncated"));
        assert_eq!(why_not_static(b"#!/bin/sh", own), Some("it is not a 64-bit little-endian ELF file"));
        Ok(())
    }

    #[test]
    fn a_shared_library_is_needed_or_not() {
        // One PT_DYNAMIC segment directly after the header and its program header.
        let mut file = vec![0; 64 + 56 + 16];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[18], file[32], file[54], file[56]) = (183, 64, 56, 1);
        (file[64], file[64 + 8], file[64 + 32]) = (2, 120, 16);
        assert_eq!(why_not_static(&file, Arch::Aarch64), None);
        file[120] = 1;
        assert_eq!(why_not_static(&file, Arch::Aarch64), Some("it needs a shared library (DT_NEEDED)"));
    }
}
