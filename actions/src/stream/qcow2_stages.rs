//! Decodes a qcow2 image to raw blocks: as a stream, or by range requests if that is not possible.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;

use slipway_formats::image::Format;
use slipway_formats::qcow2::{self, Block, FileOrder, Image, ReadAt};

use super::block_io::Output;
use super::halt::Halt;
use super::progress::Counters;
use crate::error::{Error, ImageError};
use crate::fetch::download::Download;

/// Maximum number of runs of zeros that wait for the beginning of the image.
const MAX_WAITING: usize = 1 << 16;

impl From<qcow2::Error> for Halt {
    fn from(source: qcow2::Error) -> Self {
        Halt::Failed(Error::Image(ImageError::Qcow2 { source }))
    }
}

/// Sends the blocks of an image in the order of its file. Returns the size of the raw image in bytes.
pub(super) fn in_file_order(input: impl Read, output: &Output) -> Result<u64, Halt> {
    let image = FileOrder::open(input)?;
    let size = image.size();
    if output.in_order {
        return Err(Halt::Failed(Error::Image(ImageError::Qcow2Order)));
    }
    output.limits.check(size)?;
    let mut waiting = Some(Vec::new());
    image.run(|at, block| {
        match (&mut waiting, &block) {
            (Some(zeros), Block::Zero(len)) if at > 0 && zeros.len() < MAX_WAITING => {
                zeros.push((at, *len));
                return Ok(());
            }
            _ => send(at, block, output)?,
        }
        if at == 0 { send_zeros(waiting.take(), output) } else { Ok(()) }
    })?;
    send_zeros(waiting, output)?;
    Ok(size)
}

/// Sends zeros that waited for the beginning of the image, by which the image is judged before anything is written. In
/// the file, the tables that mark zeros come before the data.
fn send_zeros(waiting: Option<Vec<(u64, u64)>>, output: &Output) -> Result<(), Halt> {
    waiting.into_iter().flatten().try_for_each(|(at, len)| send(at, Block::Zero(len), output))
}

/// Sends the blocks of an image in the order of the raw image, with random access to the file. Returns the format and
/// the size of the raw image in bytes.
pub(super) fn by_ranges(mut file: Download, counters: &Counters, output: &Output) -> Result<(Format, u64), Halt> {
    let len = file.size()?;
    counters.set_fetch_total(Some(len));
    let mut failure = None;
    let mut read_at = |at, buffer: &mut [u8]| {
        let read = file.read_at(at, buffer);
        counters.fetched.fetch_add(buffer.len() as u64, Relaxed);
        read.map_err(|error| {
            failure = Some(error);
            io::Error::other("the source cannot be read")
        })
    };
    let sent = send_image(len, &mut read_at, output);
    // The decoder only reports that a read failed, so the error of the read itself is reported.
    if let Some(error) = failure {
        return Err(error.into());
    }
    let size = sent?;
    output.limits.check_end(size)?;
    output.out.close();
    Ok((Format::Qcow2, size))
}

fn send_image(len: u64, read_at: &mut ReadAt<'_>, output: &Output) -> Result<u64, Halt> {
    let image = Image::open(len, read_at)?;
    output.limits.check(image.size())?;
    image.read(read_at, |at, block| send(at, block, output))?;
    Ok(image.size())
}

fn send(mut at: u64, block: Block, output: &Output) -> Result<(), Halt> {
    let (len, content): (u64, &mut dyn Read) = match block {
        Block::Data(bytes) => (bytes.len() as u64, &mut &*bytes),
        Block::Zero(len) => (len, &mut io::repeat(0).take(len)),
    };
    let end = at + len;
    while at < end {
        let mut buffer = output.pool.take(output.meter)?;
        buffer.place(at);
        buffer.read_from(content).map_err(|source| qcow2::Error::Read { offset: at, source })?;
        at += buffer.filled().len() as u64;
        output.out.send(buffer);
    }
    Ok(())
}
