//! Reads a source for actions that do not write it to a disk: fetched, resumed, checked and decoded like an image.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;

use super::Reading;
use super::block_io::{Input, Limits};
use super::halt::Halt;
use super::pipeline::{self, Decode, FETCHED, Plan, Sink, Sinks};
use super::progress::Counters;
use crate::error::{Error, ImageError, SourceError, TargetError};
use crate::fetch::retry;
use crate::fetch::source::Source;
use crate::machine::{Cancel, Machine};
use crate::report::Tell;
use crate::text;

/// The limit for the decoded size.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) bytes: u64,
    /// The limit in words, for the error: "twice the size of partition 1".
    pub(crate) words: &'a str,
}

/// Consumes the data of a source. It is called again if the source has to be fetched from its start again.
pub(crate) type Consume<'a, T> = dyn Fn(&mut dyn Read) -> Result<T, Error> + Sync + 'a;

/// Calls `consume` to read a source to its end, decoded as an archive if there is a `room`, else as delivered. Returns
/// what `consume` returned only if everything arrived and passed all checks, so anything it creates must not be usable
/// before that. Also returns a warning for the operator if there were several attempts. If a mirror delivers wrong
/// data, the next one is used.
pub(crate) fn run<T: Send>(
    source: &mut Source<'_>,
    room: Option<Room<'_>>,
    machine: &dyn Machine,
    report: Tell,
    consume: &Consume<'_, T>,
) -> Result<(T, Option<String>), Error> {
    let is_checked = source.is_checked();
    let value = source.at_each_place(
        report,
        |error| is_another(error, is_checked),
        |source, report| {
            retry::starting_over(report, |report| stages(source, room, machine, report, consume)).map_err(|error| {
                match room {
                    Some(room) => of_archive(error, room),
                    None => error,
                }
            })
        },
    )?;
    Ok((value, source.mirrors.warning()))
}

/// Whether the data may be wrong or damaged. If there is a check, errors for lack of space and for refused entries
/// count too, because the check only happens at the end.
fn is_another(error: &Error, is_checked: bool) -> bool {
    match error {
        Error::Source(SourceError::Signature { .. }) => true,
        Error::Image(ImageError::Digest { .. } | ImageError::Decode { .. }) => true,
        Error::Target(TargetError::Archive { is_damaged, .. }) => *is_damaged || is_checked,
        Error::Target(TargetError::UnpackEntry { source, .. } | TargetError::File { source, .. }) => {
            is_checked && matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge)
        }
        _ => false,
    }
}

/// Turns the error of a source that could not be decoded into the error of an archive.
fn of_archive(error: Error, room: Room<'_>) -> Error {
    let (reason, is_damaged) = match error {
        Error::Image(ImageError::Empty) => ("it is empty".to_owned(), true),
        Error::Image(ImageError::Format { format, .. }) => (format!("it is {format}, not a tar archive"), true),
        Error::Image(ImageError::Qcow2 { .. } | ImageError::Qcow2Order) => {
            ("it is a qcow2 image, not a tar archive".to_owned(), true)
        }
        Error::Image(ImageError::TooLarge { .. }) => {
            (format!("it has more than {}, {}", text::size(room.bytes), room.words), false)
        }
        other => return other,
    };
    TargetError::Archive { place: "all".to_owned(), reason, is_damaged }.into()
}

fn stages<T: Send>(
    source: &mut Source<'_>,
    room: Option<Room<'_>>,
    machine: &dyn Machine,
    report: Tell,
    consume: &Consume<'_, T>,
) -> Result<T, Error> {
    let stream_checks = source.checks()?;
    let is_checked = !stream_checks.is_empty();
    let decode = room.map(|room| {
        let limits = Limits { disk: "", disk_size: room.bytes, raw_size: None };
        Decode { limits, in_order: true, buffers: FETCHED, more: 0 }
    });
    let from = source.from(is_checked, decode.is_none(), is_checked);
    let plan = Plan { from, reading: Reading::Stream, stream_checks, decode, raw_checks: Vec::new(), total: None };
    let (stop, counters) = (Cancel::new(), Counters::default());
    let read = |Sink { queue, pool, meter, .. }: Sink| {
        let mut input = Counted { input: Input::new(queue, pool, meter), counters: &counters };
        let value = consume(&mut input);
        // Unread data would block the earlier stages.
        let drained = value.is_err() || io::copy(&mut input, &mut io::sink()).is_ok();
        // A failure of another stage also ends the reading. Then that failure is the one to report.
        if stop.is_set() || !drained { Err(Halt::Stopped) } else { value.map_err(Halt::Failed) }
    };
    let sinks = Sinks { threads: 1, each: &read, beside: None };
    let mut passed = pipeline::run(plan, &sinks, &stop, &counters, machine, report)?;
    passed.values.pop().ok_or(Error::Cancelled)
}

/// Counts the bytes that are read.
struct Counted<'a, R> {
    input: R,
    counters: &'a Counters,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.counters.written.fetch_add(n as u64, Relaxed);
        Ok(n)
    }
}
