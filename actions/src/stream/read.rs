//! A source as a reader, for actions that put it elsewhere than on a disk: fetched, resumed, checked and decoded as images are.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;

use slipway_protocol::{Digest, Stage};

use super::buffers::Queue;
use super::digest::Check;
use super::progress::{Counters, Meter, Watch};
use super::resume::Resume;
use super::{BUFFER, FETCHED, Halt, Shared, decode, digest, fetch, spawn, watch};
use crate::Report;
use crate::error::Error;
use crate::fetch::mirrors::Mirrors;
use crate::fetch::retry;
use crate::machine::Machine;

/// What is read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) url: &'a str,
    pub(crate) ca: Option<&'a str>,
    /// Digest of the stream as delivered.
    pub(crate) digest: Option<&'a Digest>,
    /// Where compressed data is decoded, the most bytes it may have then; it is an image that is too large if it has more. None where it
    /// is read as it comes.
    pub(crate) decode: Option<u64>,
}

/// Has `consume` read a source to its end. What it gives is returned, with a warning for the operator if that took several attempts,
/// only if everything arrived and the digest is right, so until then nothing it leaves may be of use. It is called again where the
/// source has to be fetched from its beginning.
pub(crate) fn run<T: Send>(
    source: Source<'_>,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
    consume: &(dyn Fn(&mut dyn Read) -> Result<T, Error> + Sync),
) -> Result<(T, Option<String>), Error> {
    let mut place = Mirrors::new(source.url, &[]);
    let value = retry::starting_over(report, |report| stages(source, &mut place, machine, report, consume))?;
    Ok((value, place.warning()))
}

fn stages<T: Send>(
    source: Source<'_>,
    mirrors: &mut Mirrors,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
    consume: &(dyn Fn(&mut dyn Read) -> Result<T, Error> + Sync),
) -> Result<T, Error> {
    let shared = Shared::new();
    let stop = &shared.stop;
    let counters = Counters::default();
    let fetch_meter = Meter::new(Stage::Fetch, 1);
    let digest_meter = Meter::new(Stage::Digest, 1);
    let decode_meter = Meter::new(Stage::Decode, 1);
    let read_meter = Meter::new(Stage::Write, 1);
    let mut meters = vec![&fetch_meter, &read_meter];
    meters.extend(source.digest.map(|_| &digest_meter));
    meters.extend(source.decode.map(|_| &decode_meter));

    let (fetched_pool, fetched, checked) = (Queue::pool(stop, FETCHED, BUFFER), Queue::new(stop), Queue::new(stop));
    let (raw_pool, raw) = (Queue::pool(stop, FETCHED, BUFFER), Queue::new(stop));
    let delivered = if source.digest.is_some() { &checked } else { &fetched };

    let read = thread::scope(|scope| {
        let (notes, told) = mpsc::channel::<String>();
        let fetch_notes = notes.clone();
        let (counters, fetch_meter) = (&counters, &fetch_meter);
        let (fetched_pool, fetched, raw_pool, raw) = (&fetched_pool, &fetched, &raw_pool, &raw);
        spawn(scope, &shared, &notes, move || {
            let (note, verified) = (Box::new(move |text| _ = fetch_notes.send(text)), source.digest.is_some());
            let resume = Resume { mirrors, verified, note, pause: retry::pause };
            let (registries, ca, whole, meter) = (&mut [], source.ca, verified, fetch_meter);
            fetch::Fetch { machine, resume, registries, ca, whole, counters, meter, stop }.run(fetched_pool, fetched)
        });
        if let Some(digest) = source.digest {
            let (checked, meter) = (&checked, &digest_meter);
            spawn(scope, &shared, &notes, move || {
                digest::run(vec![Check::digest("the stream", digest)], fetched, checked, meter)
            });
        }
        if let Some(disk_size) = source.decode {
            let meter = &decode_meter;
            spawn(scope, &shared, &notes, move || {
                let limits = decode::Limits { url: source.url, disk: "", disk_size, raw_size: None };
                let input = decode::Input::new(delivered, fetched_pool, meter);
                let output = decode::Output { limits: &limits, pool: raw_pool, out: raw, meter, in_order: true };
                decode::run(input, &output, || counters.fetch_total())
            });
        }
        let read_meter = &read_meter;
        let read = spawn(scope, &shared, &notes, move || {
            let (queue, pool) = if source.decode.is_some() { (raw, raw_pool) } else { (delivered, fetched_pool) };
            let mut input = Counted { input: decode::Input::new(queue, pool, read_meter), counters };
            let value = consume(&mut input);
            // What is left unread would hold the stages before this one up.
            let drained = value.is_err() || io::copy(&mut input, &mut io::sink()).is_ok();
            // A failure of another stage ends the reading too, and is the one to tell.
            if stop.is_set() || !drained { Err(Halt::Stopped) } else { value.map_err(Halt::Failed) }
        });
        drop(notes);
        watch(&told, Watch::new(counters, &meters, None), machine, &shared, report);
        read.join().ok().flatten()
    });
    match shared.into_failure() {
        Some(error) => Err(error),
        None => read.ok_or(Error::Cancelled),
    }
}

/// Counts what is read.
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
