//! An open disk: reads and writes at offsets, bypassing the page cache where the disk allows it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, major, makedev, minor};
use rustix::io::Errno;

use crate::disk::Buffer;
use crate::error::{Error, Tried, advised};
use crate::sys;

mod presence;

/// What an opened disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read it.
    Read,
    /// To overwrite it. Fails while anything else (a mount, a RAID) holds it.
    Write,
    /// To read all of it unchanged. Fails while anything else holds it and may change it.
    Capture,
    /// To overwrite a part that nothing holds, while other parts are held.
    WriteBeside,
}

/// A block device, or a regular file in place of one.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    path: String,
    size: u64,
    logical_block: u32,
    is_block_device: bool,
    /// Used for reads and for unaligned writes.
    cached: File,
    /// Opened with O_DIRECT: writing images through the page cache is several times slower.
    direct: Option<File>,
}

/// Logical block size in bytes of a regular file that is used as a disk.
const FILE_BLOCK: u32 = 512;
/// Direct writes to a regular file must be aligned to the block size of its file system, which is at most this many
/// bytes.
const FILE_ALIGNMENT: u64 = 4096;
/// Size in bytes of the pieces in which written data is compared.
const VERIFY_CHUNK: usize = 1 << 20;
/// Size in bytes of the pieces in which zeros are written if the disk has no command for that.
const ZERO_CHUNK: usize = 1 << 20;

impl OpenDisk {
    /// Opens a disk. The kernel is asked for its size.
    pub(crate) fn open(path: &str, access: Access) -> Result<Self, Error> {
        let failed = |source| Error::OpenDisk { disk: path.to_owned(), source: advised(Tried::OpenDisk, source) };
        let is_block_device = fs::metadata(path).map_err(failed)?.file_type().is_block_device();
        let writing = matches!(access, Access::Write | Access::WriteBeside);
        // O_EXCL without O_CREAT fails on a block device that is mounted or held (open(2)).
        let is_exclusive = is_block_device && matches!(access, Access::Write | Access::Capture);
        let exclusive = if is_exclusive { OFlags::EXCL.bits() } else { 0 };
        let open =
            |flags: u32| OpenOptions::new().read(true).write(writing).custom_flags(flags.cast_signed()).open(path);
        let mut cached = open(exclusive).map_err(failed)?;
        let direct = if access != Access::Read { open(OFlags::DIRECT.bits()).ok() } else { None };
        let size = cached.seek(SeekFrom::End(0)).map_err(failed)?;
        let logical_block = match is_block_device {
            true => rustix::fs::ioctl_blksszget(&cached).map_err(|errno| failed(errno.into()))?,
            false => FILE_BLOCK,
        };
        Ok(Self { path: path.to_owned(), size, logical_block, is_block_device, cached, direct })
    }

    /// Path by which the disk was opened.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Logical block size in bytes.
    pub(crate) fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// The file behind the disk, for crates that read and seek by themselves.
    pub(crate) fn file(&self) -> &File {
        &self.cached
    }

    /// Whether a file is this disk under any name, a partition of it, or stored on one of these.
    pub(crate) fn holds(&self, file: &Metadata) -> bool {
        let Ok(own) = self.cached.metadata() else { return false };
        if !self.is_block_device {
            return (own.dev(), own.ino()) == (file.dev(), file.ino());
        }
        let device = if file.file_type().is_block_device() { file.rdev() } else { file.dev() };
        device == own.rdev() || disk_of_partition(device) == Some(own.rdev())
    }

    /// Returns the error of a failed request to this disk. If the disk is gone, the error says so, because the kernel
    /// may then report anything from an I/O error to a lack of space.
    pub(crate) fn failed(&self, error: Error) -> Error {
        let own = self.cached.metadata().ok().filter(|_| self.is_block_device);
        match own.is_some_and(|own| presence::is_gone(Path::new("/sys"), own.rdev())) {
            true => Error::Vanished { disk: self.path.clone(), source: Box::new(error) },
            false => error,
        }
    }

    /// Fills the buffer from an offset in bytes.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let failed = |source| self.failed(Error::ReadDisk { disk: self.path.clone(), offset, source });
        self.cached.read_exact_at(buffer, offset).map_err(failed)
    }

    /// Fills the buffer with `len` bytes from the offset it was placed at, bypassing the page cache if possible. If the
    /// piece begins or ends within a block, the whole block is read, and the buffer must have room for it.
    pub(crate) fn read_past_cache(&self, buffer: &mut Buffer, len: usize) -> Result<(), Error> {
        let alignment = self.alignment();
        let offset = buffer.offset();
        let range = offset / alignment * alignment..(offset + len as u64).next_multiple_of(alignment);
        let read = |file: &File, bytes: &mut [u8]| file.read_exact_at(bytes, range.start);
        let blocks = buffer.blocks((offset - range.start) as usize, (range.end - range.start) as usize);
        // If the size of a file is not a multiple of the alignment, its last bytes are not a whole block.
        let direct = self.direct.as_ref().filter(|_| range.end <= self.size);
        let direct = direct.zip(blocks).map(|(direct, blocks)| read(direct, blocks));
        buffer.advance(len);
        match direct {
            Some(Ok(())) => return Ok(()),
            Some(Err(source)) if source.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
                return Err(self.failed(Error::ReadDisk { disk: self.path.clone(), offset, source }));
            }
            None | Some(Err(_)) => {}
        }
        self.read_at(buffer.filled_mut(), offset)
    }

    /// Fails unless the disk has these bytes at an offset. Bypasses the page cache if possible.
    pub(crate) fn verify_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let mut buffer = Buffer::new(VERIFY_CHUNK);
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            buffer.place(at);
            let (piece, after) = rest.split_at(buffer.spare().len().min(rest.len()));
            self.read_past_cache(&mut buffer, piece.len())?;
            if buffer.filled() != piece {
                return Err(Error::ReadBack { disk: self.path.clone(), offset: at, len: piece.len() as u64 });
            }
            (rest, at) = (after, at + piece.len() as u64);
        }
        Ok(())
    }

    /// Alignment of direct reads and writes, in bytes.
    fn alignment(&self) -> u64 {
        if self.is_block_device { u64::from(self.logical_block) } else { FILE_ALIGNMENT }
    }

    /// Writes all bytes at an offset in bytes: the aligned part directly, the rest through the page cache.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let failed = |source| self.failed(Error::WriteDisk { disk: self.path.clone(), offset, source });
        let alignment = self.alignment();
        let unaligned = (offset.next_multiple_of(alignment) - offset).min(bytes.len() as u64) as usize;
        let (first, rest) = bytes.split_at(unaligned);
        let is_aligned = rest.as_ptr().addr().is_multiple_of(alignment as usize);
        let split = if is_aligned { rest.len() - rest.len() % alignment as usize } else { 0 };
        let (middle, last) = rest.split_at(split);
        self.cached.write_all_at(first, offset).map_err(failed)?;
        let offset = offset + first.len() as u64;
        match self.direct.as_ref().map(|direct| direct.write_all_at(middle, offset)) {
            Some(Ok(())) => {}
            Some(Err(error)) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => return Err(failed(error)),
            // No direct access, or a file system that accepts the flag but refuses the write.
            None | Some(Err(_)) => self.cached.write_all_at(middle, offset).map_err(failed)?,
        }
        self.cached.write_all_at(last, offset + split as u64).map_err(failed)
    }

    /// Zeroes a range of bytes that is aligned to logical blocks.
    pub(crate) fn zero(&self, range: Range<u64>) -> Result<(), Error> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        let done = match self.is_block_device {
            true => sys::block::zero_out(&self.cached, range.start, len),
            false => {
                let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.cached, flags, range.start, len)
            }
        };
        match done {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => self.write_zeros(range),
            Err(errno) => {
                let (disk, offset, source) = (self.path.clone(), range.start, errno.into());
                Err(self.failed(Error::WriteDisk { disk, offset, source }))
            }
        }
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<(), Error> {
        let zeros = Buffer::zeroed(ZERO_CHUNK);
        let mut at = range.start;
        while at < range.end {
            let zeros = zeros.filled();
            let zeros = zeros.get(..(range.end - at) as usize).unwrap_or(zeros);
            self.write_at(zeros, at)?;
            at += zeros.len() as u64;
        }
        Ok(())
    }

    /// Returns once all data is on the disk.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let failed = |source| self.failed(Error::FlushDisk { disk: self.path.clone(), source });
        self.cached.sync_data().map_err(failed)
    }

    /// Makes the kernel read the partition table again. A disk that cannot have partition nodes, such as a file or a
    /// loop device, is not an error.
    pub(crate) fn reread_partitions(&self) -> Result<(), Errno> {
        if !self.is_block_device {
            return Ok(());
        }
        match sys::block::reread_partitions(&self.cached) {
            Err(Errno::INVAL) => Ok(()),
            other => other,
        }
    }
}

/// Returns the device number of the disk that a partition is on (kernel documentation, ABI/testing/sysfs-dev).
fn disk_of_partition(device: u64) -> Option<u64> {
    let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let partition = fs::canonicalize(link).ok().filter(|dir| dir.join("partition").exists())?;
    let number = fs::read_to_string(partition.parent()?.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}
