//! Mode `secure` on eMMC: secure erase or secure trim, done by the kernel as a discard (JESD84-B51, secure erase and
//! secure trim).

use rustix::io::Errno;

use super::worker::Worker;
use super::zero;
use crate::error::Error;
use crate::sys;

/// Bytes per request, so that progress and cancellation work.
const PIECE: u64 = 256 << 20;

/// Erases the disk. Returns what was done, or why that is not possible.
pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Result<String, String>, Error> {
    let size = worker.disk.size();
    worker.begin(size);
    for piece in zero::pieces(0..size, PIECE) {
        worker.check()?;
        match sys::block::secure_discard(worker.disk.file(), piece.start, piece.end - piece.start) {
            Ok(()) => worker.reach(piece.end),
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => return Ok(Err("it has no secure erase".to_owned())),
            Err(errno) => {
                let (disk, offset) = (worker.disk.path().to_owned(), piece.start);
                return Err(worker.disk.failed(Error::WriteDisk { disk, offset, source: errno.into() }));
            }
        }
    }
    Ok(Ok("eMMC secure erase".to_owned()))
}
