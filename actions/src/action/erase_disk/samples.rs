//! Reads samples back from a disk, bypassing the page cache, to verify that they are erased.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::disk::Buffer;
use crate::disk::open::OpenDisk;
use crate::error::{EraseError, Error};

/// Number of samples per range, besides its beginning, and bytes of each.
const PLACES: u64 = 256;
const PLACE: u64 = 4096;

/// Reads both ends of every range and samples spread over it, and fails at the first byte that is not zero. Returns the
/// number of samples. Ranges must consist of whole logical blocks.
pub(super) fn are_zero(disk: &OpenDisk, ranges: &[Range<u64>]) -> Result<u64, Error> {
    let mut reader = Reader::new(disk);
    let mut count = 0;
    for place in ranges.iter().flat_map(|range| places(range, disk.logical_block())) {
        let offset = place.start;
        let bytes = reader.read(place)?;
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            return Err(EraseError::NotErased { disk: disk.path().to_owned(), offset: offset + at as u64 }.into());
        }
        count += 1;
    }
    Ok(count)
}

/// Samples of a disk from before it erased itself. Afterwards it may read as anything: zeros, ones, or the old data
/// decrypted with a new key.
#[derive(Debug)]
pub(super) struct Before(Vec<(Range<u64>, Vec<u8>)>);

impl Before {
    /// Reads samples spread over the disk. Skips unreadable ones, because a locked or worn out disk must be erasable
    /// too.
    pub(super) fn read(disk: &OpenDisk) -> Self {
        let mut reader = Reader::new(disk);
        Self::of(places(&(0..disk.size()), disk.logical_block()), |place| reader.read(place).map(<[u8]>::to_vec))
    }

    fn of(all: impl Iterator<Item = Range<u64>>, mut read: impl FnMut(Range<u64>) -> Result<Vec<u8>, Error>) -> Self {
        Self(all.filter_map(|place| Some((place.clone(), read(place).ok()?))).collect())
    }

    /// Reads the samples again, and fails if one is unchanged, unless it was blank: the same byte throughout. Returns
    /// the number of samples compared, which is zero if none could be read before.
    pub(super) fn is_gone(&self, disk: &OpenDisk) -> Result<u64, Error> {
        let mut reader = Reader::new(disk);
        for (place, before) in &self.0 {
            let now = reader.read(place.clone())?;
            let was_something = before.iter().any(|byte| Some(byte) != before.first());
            if was_something && now == before.as_slice() {
                return Err(EraseError::Unchanged { disk: disk.path().to_owned(), offset: place.start }.into());
            }
        }
        Ok(self.0.len() as u64)
    }
}

/// Samples of whole logical blocks, spread over a range.
fn places(range: &Range<u64>, block: u32) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end, block) = (range.start, range.end, u64::from(block).max(1));
    let len = PLACE.max(block);
    let room = (end - start).saturating_sub(len);
    let count = (room / len).clamp(1, PLACES);
    (0..=count).filter(move |_| end > start).map(move |place| {
        let at = (u128::from(room) * u128::from(place) / u128::from(count)) as u64;
        let at = start + at / block * block;
        at..(at + len).min(end)
    })
}

/// Reads a disk, bypassing the page cache, which may hold data that the disk no longer has.
struct Reader<'a> {
    disk: &'a OpenDisk,
    /// `None` for a file on a file system that does not support direct access.
    direct: Option<File>,
    buffer: Buffer,
}

impl<'a> Reader<'a> {
    fn new(disk: &'a OpenDisk) -> Self {
        // Opened through the descriptor, so that it is the same disk even if the path now leads to another disk.
        let path = format!("/proc/self/fd/{}", disk.file().as_raw_fd());
        let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).ok();
        let len = PLACE.max(u64::from(disk.logical_block()));
        Self { disk, direct, buffer: Buffer::new(len as usize) }
    }

    fn read(&mut self, place: Range<u64>) -> Result<&[u8], Error> {
        let len = (place.end - place.start) as usize;
        let bytes = self.buffer.spare().get_mut(..len).unwrap_or_default();
        match self.direct.as_ref().map(|direct| direct.read_exact_at(bytes, place.start)) {
            Some(Ok(())) => {}
            Some(Err(source)) if source.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
                let (disk, offset) = (self.disk.path().to_owned(), place.start);
                return Err(self.disk.failed(Error::ReadDisk { disk, offset, source }));
            }
            None | Some(Err(_)) => self.disk.read_at(bytes, place.start)?,
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::open::Access;
    use std::fs;

    fn check(range: Range<u64>, block: u32, expect: &[Range<u64>]) {
        assert_eq!(places(&range, block).collect::<Vec<_>>(), expect, "{range:?}");
    }

    #[test]
    fn places_are_whole_blocks_from_end_to_end() {
        check(0..0, 512, &[]);
        check(512..1024, 512, &[512..1024, 512..1024]);
        check(0..8192 + 512, 512, &[0..4096, 4608..8704]);
        check(0..3 * 4096, 4096, &[0..4096, 4096..8192, 8192..12288]);
        check(0..65536, 16384, &[0..16384, 16384..32768, 32768..49152, 49152..65536]);
        let many: Vec<Range<u64>> = places(&(0..u64::MAX / 512 * 512), 512).collect();
        assert_eq!(many.len(), 257);
        assert_eq!(many[256].end, u64::MAX / 512 * 512);
        assert!(many.iter().all(|place| place.start % 512 == 0 && place.end - place.start == 4096));
    }

    #[test]
    fn what_could_be_read_before_is_compared_and_nothing_else_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let old: Vec<u8> = (0..=u8::MAX).cycle().take(16 * PLACE as usize).collect();
        fs::write(file.path(), &old).unwrap();
        let disk = OpenDisk::open(file.path().to_str().unwrap(), Access::Read).unwrap();
        let before = |is_bad: fn(u64) -> bool| {
            let mut reader = Reader::new(&disk);
            Before::of(places(&(0..disk.size()), disk.logical_block()), |place| match is_bad(place.start) {
                true => Err(Error::Cancelled),
                false => reader.read(place).map(<[u8]>::to_vec),
            })
        };
        let (all, but_the_first, none) = (before(|_| false), before(|at| at == 0), before(|_| true));
        for (before, expect) in [(&all, 0), (&but_the_first, PLACE)] {
            let unchanged = before.is_gone(&disk);
            assert!(
                matches!(unchanged, Err(Error::Erase(EraseError::Unchanged { offset, .. })) if offset == expect),
                "{unchanged:?}"
            );
        }
        fs::write(file.path(), vec![0; old.len()]).unwrap();
        for (before, expect) in [(&all, 16), (&but_the_first, 15), (&none, 0)] {
            assert_eq!(before.is_gone(&disk).unwrap(), expect);
        }
    }
}
