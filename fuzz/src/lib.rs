//! Code that several targets share. A disk consists of a few sectors anywhere on a disk of zeros, so a fuzzer reaches
//! the end of a large disk with a small input.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use slipway_formats::boot_config::Edit;
use slipway_protocol::{KernelArgReplacement, KernelArgs};

/// Size of a sector in bytes.
pub const SECTOR: usize = 512;
/// Maximum size of a disk in sectors: 512 MiB. Only written parts take memory.
const MAX_SECTORS: u32 = 1 << 20;
/// Size of a record in bytes: a sector's number and its content.
const RECORD: usize = 4 + SECTOR;

/// A disk in memory.
pub struct Disk {
    file: File,
    /// Size in bytes.
    pub size: u64,
}

impl Disk {
    /// Makes the disk that an input describes: its size in sectors, then sectors, each after its number. All numbers
    /// are 4 bytes, little-endian. A sector number that is negative as a signed number counts from the end. The last
    /// sector may be cut short.
    pub fn new(input: &[u8]) -> Option<Self> {
        let (sectors, records) = input.split_first_chunk::<4>()?;
        let sectors = u32::from_le_bytes(*sectors) % (MAX_SECTORS + 1);
        let file = File::from(memfd_create("disk", MemfdFlags::CLOEXEC).ok()?);
        let size = u64::from(sectors) * SECTOR as u64;
        file.set_len(size).ok()?;
        let disk = Self { file, size };
        for record in records.chunks(RECORD) {
            if let Some((number, bytes)) = record.split_first_chunk::<4>() {
                let number = i32::from_le_bytes(*number);
                let number = if number < 0 { sectors.checked_add_signed(number) } else { Some(number.unsigned_abs()) };
                let Some(number) = number.filter(|number| *number < sectors) else { continue };
                disk.file.write_all_at(bytes, u64::from(number) * SECTOR as u64).ok()?;
            }
        }
        Some(disk)
    }

    /// A path under which this process can open the disk.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Reads bytes. Returns `None` if they are not all inside the disk.
    pub fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    }

    /// Writes bytes if they are all inside the disk.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        if offset + bytes.len() as u64 <= self.size {
            self.file.write_all_at(bytes, offset).expect("writing to memory");
        }
    }
}

/// Parses a change of a command line from the first line of an input. Also returns the rest of the input. The line has
/// words after a sign: `+` appends, `?` appends if missing, `-` deletes, and `=` replaces, with a `>` before the new
/// word. Returns `None` if the change would be refused.
pub fn change(input: &[u8]) -> Option<(KernelArgs, &str)> {
    let (line, text) = str::from_utf8(input).ok()?.split_once('\n')?;
    let mut wanted = KernelArgs::default();
    for word in line.split('\t') {
        let (sign, word) = word.split_at_checked(1)?;
        match sign {
            "+" => wanted.append.push(word.to_owned()),
            "?" => wanted.append_if_missing.push(word.to_owned()),
            "-" => wanted.delete.push(word.to_owned()),
            "=" => {
                let (old, new) = word.split_once('>')?;
                wanted.replace.push(KernelArgReplacement { old: old.to_owned(), new: new.to_owned() });
            }
            _ => return None,
        }
    }
    wanted.validate().is_empty().then_some((wanted, text))
}

/// Returns the text of an edited file. `None` if the file has no command line or the edit is refused.
pub fn edited(edit: Edit) -> Option<String> {
    match edit {
        Edit::Edited(text) => Some(text),
        Edit::NoCommandLine | Edit::Refused(_) => None,
    }
}
