//! Moves a file system up in its partition, from its end to its start, to make room for the LUKS2 header, and encrypts
//! it on the way. Every byte is overwritten, by its encrypted data or by the header.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Instant;

use twox_hash::XxHash3_64;

use super::luks2::{DATA_OFFSET, Volume};
use super::table::Table;
use super::xts::Xts;
use crate::disk::Buffer;
use crate::disk::open::OpenDisk;
use crate::error::Error;
use crate::machine::Cancel;
use crate::report::{Report, Tell};
use crate::stream::progress::{Counters, Pace, Watch};

/// Bytes read and written at once. Not more than the distance of the move, so that nothing is overwritten before it is
/// read.
const PIECE: u64 = 1 << 20;
/// Number of pieces read ahead. Reading ahead is safe because nothing below the current piece has been overwritten yet.
const BUFFERS: usize = 4;

const _: () = assert!(PIECE <= DATA_OFFSET && DATA_OFFSET.is_multiple_of(PIECE));

/// A file system to encrypt.
pub(super) struct Work<'a> {
    pub(super) disk: &'a OpenDisk,
    /// Start of the partition in bytes.
    pub(super) start: u64,
    /// Bytes of the file system.
    pub(super) size: u64,
    pub(super) volume: &'a Volume,
    /// What is written to the start of the partition.
    pub(super) header: &'a [u8],
}

impl Work<'_> {
    /// Encrypts the file system. The partition table is removed before the first byte is written, and restored once
    /// everything is on the disk. If this fails or is interrupted, nothing can be found on the disk.
    pub(super) fn run(&self, table: &mut Table, cancel: &Cancel, report: Tell) -> Result<(), Error> {
        table.take_away(self.disk)?;
        let counters = Counters::default();
        let mut watch = Watch::new(&counters, &[], Some(self.size));
        let mut pace = Pace::new(Instant::now());
        let mut progress = |len: usize| {
            cancel.check()?;
            let written = counters.written.fetch_add(len as u64, Relaxed) + len as u64;
            let is_last = len > 0 && written == self.size;
            let now = Instant::now();
            if pace.is_due(now) || is_last {
                report(Report::Progress(watch.look(now)));
            }
            Ok(())
        };
        let written = self.move_up(&mut progress)?;
        self.disk.flush()?;
        self.compare(written, &mut progress)?;
        self.disk.zero(self.start..self.start + DATA_OFFSET)?;
        self.disk.flush()?;
        self.disk.write_at(self.header, self.start)?;
        self.disk.flush()?;
        self.disk.verify_at(self.header, self.start)?;
        table.put_back(self.disk)
    }

    /// Encrypts and moves all pieces, the last first. Returns the digest of the written data in this order.
    fn move_up(&self, progress: &mut dyn FnMut(usize) -> Result<(), Error>) -> Result<u64, Error> {
        let xts = Xts::new(&self.volume.key);
        let mut digest = XxHash3_64::new();
        self.each_piece(0, &mut |buffer| {
            self.write(&xts, buffer)?;
            digest.write(buffer.filled());
            progress(buffer.filled().len())
        })?;
        Ok(digest.finish())
    }

    /// Fails unless the moved data can be read back from the disk itself.
    fn compare(&self, written: u64, progress: &mut dyn FnMut(usize) -> Result<(), Error>) -> Result<(), Error> {
        let mut digest = XxHash3_64::new();
        self.each_piece(DATA_OFFSET, &mut |buffer| {
            digest.write(buffer.filled());
            progress(0)
        })?;
        let (disk, offset, len) = (self.disk.path().to_owned(), self.start + DATA_OFFSET, self.size);
        if digest.finish() == written { Ok(()) } else { Err(Error::ReadBack { disk, offset, len }) }
    }

    /// Calls `each` for each piece of the file system, last piece first, reading ahead. Pieces are read `above` bytes
    /// after the place that they had before the move.
    fn each_piece(&self, above: u64, each: &mut dyn FnMut(&mut Buffer) -> Result<(), Error>) -> Result<(), Error> {
        let (read, to_use) = mpsc::sync_channel(BUFFERS);
        let (used, to_read) = mpsc::channel();
        for _ in 0..BUFFERS {
            // Sending cannot fail, because the receiver is dropped later.
            _ = used.send(Buffer::new(PIECE as usize));
        }
        thread::scope(|scope| {
            scope.spawn(move || self.read(above, &to_read, &read));
            // The reader waits for buffers until this sender is dropped. If the loop ends early, the sender must be
            // dropped too.
            let used = used;
            for piece in to_use {
                let mut buffer = piece?;
                each(&mut buffer)?;
                // The reader is gone once everything is read.
                _ = used.send(buffer);
            }
            Ok(())
        })
    }

    fn read(&self, above: u64, free: &Receiver<Buffer>, read: &SyncSender<Result<Buffer, Error>>) {
        for piece in backwards(self.start..self.start + self.size) {
            let Ok(mut buffer) = free.recv() else { return };
            buffer.place(piece.start + above);
            let done = self.disk.read_past_cache(&mut buffer, (piece.end - piece.start) as usize);
            let failed = done.is_err();
            // The receiver is gone if the other side failed.
            if read.send(done.map(|()| buffer)).is_err() || failed {
                return;
            }
        }
    }

    fn write(&self, xts: &Xts, buffer: &mut Buffer) -> Result<(), Error> {
        let offset = buffer.offset();
        xts.encrypt(buffer.filled_mut(), offset - self.start, self.volume.sector);
        self.disk.write_at(buffer.filled(), offset + DATA_OFFSET)
    }
}

/// Splits a range into pieces that end at multiples of the piece size, the last one first.
fn backwards(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut end = range.end;
    std::iter::from_fn(move || {
        let start = (end.saturating_sub(1) / PIECE * PIECE).max(range.start);
        let piece = start..end;
        end = start;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::State;
    use super::*;
    use crate::disk::open::Access;
    use crate::disk::partitions::{self, Partition};
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::Command;

    const MIB: usize = 1 << 20;
    /// The partition in MiB. Its last part does not belong to the file system.
    const PARTITION: Range<usize> = 1..50;
    const SIZE: usize = 30 * MIB + 512;

    /// Makes a disk with a partition, and returns its contents.
    fn disk(path: &Path) -> Vec<u8> {
        let bytes: Vec<u8> = (0..60 * MIB).map(|at| (at / 512 * 7 + at % 512) as u8).collect();
        fs::write(path, bytes).unwrap();
        let new = format!("--new=1:{}:{}", PARTITION.start * 2048, PARTITION.end * 2048 - 1);
        let made = Command::new("sgdisk").args(["--clear", &new]).arg(path).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        fs::read(path).unwrap()
    }

    fn run(path: &Path, volume: &Volume, header: &[u8], cancel: &Cancel) -> Result<(), Error> {
        run_watched(path, volume, header, cancel, &mut |_| {})
    }

    fn run_watched(path: &Path, volume: &Volume, header: &[u8], cancel: &Cancel, report: Tell) -> Result<(), Error> {
        let disk = OpenDisk::open(path.to_str().unwrap(), Access::Write)?;
        let root = partitions::read(&disk)?.remove(0);
        let (mut table, root) = Table::read(&disk, &root, false)?;
        let work = Work { disk: &disk, start: root.bytes.start, size: SIZE as u64, volume, header };
        let done = work.run(&mut table, cancel, report);
        assert_eq!(table.state, if done.is_ok() { State::Back } else { State::Gone });
        done
    }

    #[test]
    fn a_file_system_is_encrypted_behind_its_header_and_nothing_else_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let before = disk(&path);
        let volume = Volume { uuid: [0; 16], key: [9; 64], sector: 512 };
        let header = vec![0xEE; 8192];
        run(&path, &volume, &header, &Cancel::new()).unwrap();
        let mut expect = before;
        let (start, data) = (PARTITION.start * MIB, DATA_OFFSET as usize);
        let mut content = expect[start..start + SIZE].to_vec();
        Xts::new(&volume.key).encrypt(&mut content, 0, volume.sector);
        expect[start..start + data].fill(0);
        expect[start..start + header.len()].copy_from_slice(&header);
        expect[start + data..start + data + SIZE].copy_from_slice(&content);
        let found = fs::read(&path).unwrap();
        assert_eq!(found.iter().zip(&expect).position(|(found, expect)| found != expect), None);
        assert_eq!(found.len(), expect.len());
    }

    #[test]
    fn what_did_not_arrive_is_found_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let volume = Volume { uuid: [0; 16], key: [9; 64], sector: 512 };
        for offset in [0, SIZE / 2, SIZE - 1] {
            disk(&path);
            let mut is_spoiled = false;
            let mut spoil = |report: Report| {
                let is_written = matches!(report, Report::Progress(progress) if progress.bytes == SIZE as u64);
                if is_written && !is_spoiled {
                    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
                    let at = (PARTITION.start * MIB + offset) as u64 + DATA_OFFSET;
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at).unwrap();
                    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
                    is_spoiled = true;
                }
            };
            let done = run_watched(&path, &volume, &[0xEE; 8192], &Cancel::new(), &mut spoil);
            assert!(matches!(done, Err(Error::ReadBack { .. })), "byte {offset}: {done:?}");
            let found = fs::read(&path).unwrap();
            assert!(is_spoiled && found[PARTITION.start * MIB] != 0xEE);
        }
    }

    #[test]
    fn what_is_stopped_on_the_way_leaves_a_disk_without_partitions_and_without_a_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        disk(&path);
        let cancel = Cancel::new();
        cancel.set();
        let volume = Volume { uuid: [0; 16], key: [9; 64], sector: 512 };
        assert!(matches!(run(&path, &volume, &[0xEE; 8192], &cancel), Err(Error::Cancelled)));
        let disk = OpenDisk::open(path.to_str().unwrap(), Access::Read).unwrap();
        assert_eq!(partitions::read(&disk).unwrap(), [Partition::whole(&disk)]);
        let found = fs::read(&path).unwrap();
        assert!(found[PARTITION.start * MIB] != 0xEE);
    }

    #[test]
    fn pieces_cover_a_range_from_its_end_to_its_start() {
        let check = |range: Range<u64>, expect: &[Range<u64>]| {
            assert_eq!(backwards(range.clone()).collect::<Vec<_>>(), expect, "{range:?}");
        };
        let mib = PIECE;
        check(0..0, &[]);
        check(5..5, &[]);
        check(0..512, std::slice::from_ref(&(0..512)));
        check(mib..3 * mib, &[2 * mib..3 * mib, mib..2 * mib]);
        check(512..2 * mib + 512, &[2 * mib..2 * mib + 512, mib..2 * mib, 512..mib]);
    }
}
