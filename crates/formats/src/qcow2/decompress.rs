//! Compressed clusters: raw deflate (RFC 1951) or a zstd frame (RFC 8878). Any bytes may follow.

use std::io;

use flate2::{Decompress, FlushDecompress};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::header::Compression;

/// A frame may refer back by at most the largest cluster, 2 MiB. The decoder keeps no more, whatever window a frame
/// asks for.
const ZSTD_WINDOW_LOG: u32 = 21;

pub(super) enum Decompressor {
    Deflate(Box<Decompress>),
    Zstd(Decoder<'static>),
}

impl Decompressor {
    pub(super) fn new(compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::Deflate => Decompressor::Deflate(Box::new(Decompress::new(false))),
            Compression::Zstd => {
                let mut decoder = Decoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                Decompressor::Zstd(decoder)
            }
        })
    }

    /// Fills a cluster, or fails. The rest of the input is ignored: it belongs to another cluster.
    pub(super) fn run(&mut self, input: &[u8], cluster: &mut [u8]) -> io::Result<()> {
        let filled = match self {
            Decompressor::Deflate(state) => {
                state.reset(false);
                state.decompress(input, cluster, FlushDecompress::Finish).map_err(io::Error::other)?;
                state.total_out() as usize
            }
            Decompressor::Zstd(decoder) => zstd(decoder, input, cluster)?,
        };
        match filled == cluster.len() {
            true => Ok(()),
            false => Err(io::Error::other(format!("it ends after {filled} of {} bytes", cluster.len()))),
        }
    }
}

fn zstd(decoder: &mut Decoder<'static>, input: &[u8], cluster: &mut [u8]) -> io::Result<usize> {
    decoder.reinit()?;
    let mut source = InBuffer::around(input);
    let mut target = OutBuffer::around(cluster);
    loop {
        let before = (source.pos(), target.pos());
        // Zero at the end of a frame; the bytes after it do not belong to this cluster.
        let wanted = decoder.run(&mut source, &mut target)?;
        if wanted == 0 || target.pos() == target.capacity() || (source.pos(), target.pos()) == before {
            return Ok(target.pos());
        }
    }
}
