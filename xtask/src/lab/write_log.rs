//! Reads the requests to a machine's disk, recorded by QEMU's block driver `blklogwrites` in the format of the kernel's
//! target dm-log-writes (drivers/md/dm-log-writes.c; QEMU's block/blklogwrites.c). Numbers are little endian. A request
//! is logged when it completes, so requests that precede a flush in the log completed before that flush.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};

/// Magic number of the superblock.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
/// Sector size of QEMU's logs, and the smallest piece that a disk writes atomically, in bytes.
pub const SECTOR: usize = 512;
/// Larger requests indicate a damaged log: the kernel's requests have a few MiB at most.
const MAX_SECTORS: u64 = 1 << 16;

/// A request to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A write.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The data.
        bytes: Vec<u8>,
    },
    /// Bytes were discarded. Their content is undefined afterwards.
    Discard,
    /// A flush: what completed before it must survive a power cut.
    Flush,
}

/// Reads the number of requests in a log. It is 0 before the first flush.
pub fn count(log: &mut impl Read) -> Result<u64> {
    let sector = sector(log)?;
    let (magic, version, count, size) =
        (number(&sector, 0), number(&sector, 8), number(&sector, 16), number(&sector, 24));
    if magic != MAGIC || version != VERSION || size & 0xffff_ffff != SECTOR as u64 {
        bail!("reading the log of a disk: it has no superblock of version {VERSION} with sectors of {SECTOR} bytes");
    }
    Ok(count)
}

/// Reads a log from the start.
pub fn read(log: &mut impl Read) -> Result<Vec<Request>> {
    let count = count(log)?;
    (0..count).map(|index| request(log).with_context(|| format!("reading request {index} of {count}"))).collect()
}

fn request(log: &mut impl Read) -> Result<Request> {
    let entry = sector(log)?;
    let (at, sectors, flags) = (number(&entry, 0), number(&entry, 8), number(&entry, 16));
    if flags & FLUSH != 0 {
        return Ok(Request::Flush);
    }
    if flags & DISCARD != 0 {
        return Ok(Request::Discard);
    }
    ensure!(sectors <= MAX_SECTORS, "a request of {sectors} sectors is too large");
    let mut bytes = vec![0; sectors as usize * SECTOR];
    log.read_exact(&mut bytes).context("reading the data to write")?;
    Ok(Request::Write { offset: at * SECTOR as u64, bytes })
}

fn sector(log: &mut impl Read) -> Result<[u8; SECTOR]> {
    let mut sector = [0; SECTOR];
    log.read_exact(&mut sector).context("reading the log of a disk")?;
    Ok(sector)
}

fn number(sector: &[u8; SECTOR], at: usize) -> u64 {
    sector[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector_of(numbers: &[u64]) -> Vec<u8> {
        let mut sector: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        sector.resize(SECTOR, 0);
        sector
    }

    #[test]
    fn requests_come_in_order_and_a_log_cut_short_is_an_error() {
        let log = [
            sector_of(&[MAGIC, VERSION, 3, 512]),
            sector_of(&[7, 2, 0]),
            vec![1; 2 * SECTOR],
            sector_of(&[9, 100, DISCARD]),
            sector_of(&[0, 0, FLUSH]),
        ]
        .concat();
        let write = Request::Write { offset: 7 * 512, bytes: vec![1; 1024] };
        assert_eq!(read(&mut log.as_slice()).expect("whole"), [write, Request::Discard, Request::Flush]);
        let cut = read(&mut &log[..4 * SECTOR]).expect_err("a log cut short");
        assert_eq!(format!("{:#}", cut.root_cause()), "failed to fill whole buffer");
        assert!(count(&mut sector_of(&[MAGIC, 2, 3, 512]).as_slice()).is_err());
    }
}
