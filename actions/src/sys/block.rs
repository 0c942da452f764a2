//! Block devices (linux/fs.h).

use std::fs::File;

use rustix::io::Result;
use rustix::ioctl::{self, NoArg, Opcode, Setter};

/// `_IO(0x12, 95)` of linux/fs.h.
const BLKRRPART: Opcode = ioctl::opcode::none(0x12, 95);
/// `_IO(0x12, 127)` of linux/fs.h.
const BLKZEROOUT: Opcode = ioctl::opcode::none(0x12, 127);
/// `_IO(0x12, 97)` of linux/fs.h.
const BLKFLSBUF: Opcode = ioctl::opcode::none(0x12, 97);
/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: Opcode = ioctl::opcode::none(0x12, 119);
/// `_IO(0x12, 125)` of linux/fs.h.
const BLKSECDISCARD: Opcode = ioctl::opcode::none(0x12, 125);

/// Makes the kernel read the partition table again.
pub(crate) fn reread_partitions(disk: &File) -> Result<()> {
    // SAFETY: BLKRRPART takes no argument.
    unsafe { ioctl::ioctl(disk, NoArg::<BLKRRPART>::new()) }
}

/// Makes the disk, or else the kernel, write `len` zeros from `offset` on. Both are in bytes and multiples of 512.
pub(crate) fn zero_out(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len])) }
}

/// Writes the kernel's dirty buffers of the disk and drops its cache.
pub(crate) fn flush_buffers(disk: &File) -> Result<()> {
    // SAFETY: BLKFLSBUF takes no argument.
    unsafe { ioctl::ioctl(disk, NoArg::<BLKFLSBUF>::new()) }
}

/// Tells the disk that it may discard `len` bytes from `offset` on, both multiples of the disk's logical block size.
pub(crate) fn discard(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// As [`discard`], and makes the disk erase every copy of these bytes.
pub(crate) fn secure_discard(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKSECDISCARD reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKSECDISCARD, [u64; 2]>::new([offset, len])) }
}
