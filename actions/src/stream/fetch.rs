//! First stage: receives the source.

use std::sync::atomic::Ordering::Relaxed;

use super::buffers::Queue;
use super::halt::Halt;
use super::progress::{Counters, Meter};
use crate::fetch::download::Download;

/// Sends the whole source, in full buffers except for the last.
pub(super) fn run(
    mut download: Download<'_, '_>,
    counters: &Counters,
    pool: &Queue,
    out: &Queue,
    meter: &Meter,
) -> Result<(), Halt> {
    let mut buffer = pool.take(meter)?;
    loop {
        if buffer.spare().is_empty() {
            out.send(std::mem::replace(&mut buffer, pool.take(meter)?));
            buffer.place(download.offset());
        }
        let n = download.read(buffer.spare())?;
        counters.set_fetch_total(download.total());
        if n == 0 {
            break;
        }
        buffer.advance(n);
        counters.fetched.store(download.offset(), Relaxed);
    }
    out.send(buffer);
    out.close();
    Ok(())
}
