//! Decodes a stream that is completely in memory, for the fuzz targets in `fuzz/` and for tests.

use std::thread;

use slipway_protocol::Stage;

use super::block_io::{Input, Limits, Output};
use super::buffers::Queue;
use super::decode;
use super::halt::{Halt, StopOnPanic};
use super::progress::Meter;
use crate::disk::Buffer;
use crate::error::Error;
use crate::machine::Cancel;

/// Size of the pieces in which the stream is delivered, in bytes: small, so that headers may be split.
const BUFFER: usize = 4096;

/// Decodes a stream like an image for a disk of `room` bytes, in pieces if it has any.
pub fn decode(stream: &[u8], room: u64) -> Result<Vec<u8>, Error> {
    let mut image = Vec::new();
    for (offset, bytes) in blocks(stream, room, true)? {
        assert_eq!(offset, image.len() as u64, "blocks come in order");
        image.extend(bytes);
    }
    Ok(image)
}

/// Returns the blocks of the image, with their offsets, in the order in which the decoder sends them.
pub(super) fn blocks(stream: &[u8], room: u64, in_order: bool) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let (stop, meter) = (Cancel::new(), Meter::new(Stage::Decode, 1));
    let (spent, fetched) = (Queue::new(&stop), Queue::new(&stop));
    for bytes in stream.chunks(BUFFER) {
        let mut buffer = Buffer::new(BUFFER);
        buffer.spare()[..bytes.len()].copy_from_slice(bytes);
        buffer.advance(bytes.len());
        fetched.send(buffer);
    }
    fetched.close();
    let (pool, raw) = (Queue::pool(&stop, 2, BUFFER), Queue::new(&stop));
    let limits = Limits { disk: "/disk", disk_size: room, raw_size: None };
    let output = Output { limits: &limits, pool: &pool, more: 0, out: &raw, meter: &meter, in_order };
    thread::scope(|scope| {
        let collected = scope.spawn(|| {
            let _stop_on_panic = StopOnPanic(&stop);
            let mut blocks = Vec::new();
            while let Ok(Some(buffer)) = raw.recv(&meter) {
                blocks.push((buffer.offset(), buffer.filled().to_vec()));
                pool.recycle(buffer);
            }
            blocks
        });
        let decoded = decode::run(Input::new(&fetched, &spent, &meter), &output, || Some(stream.len() as u64));
        raw.close();
        let blocks = collected.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match decoded {
            Ok((_, size)) => {
                let came: usize = blocks.iter().map(|(_, bytes)| bytes.len()).sum();
                assert_eq!(size, came as u64, "the size is that of what came");
                Ok(blocks)
            }
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Stopped) => unreachable!("nobody stops it"),
        }
    })
}
