//! Checks the data that passes: the stream as delivered, and the raw image.

use super::buffers::Queue;
use super::halt::Halt;
use super::progress::Meter;
use crate::fetch::verify::Check;

/// Passes every buffer on. Fails as soon as a check fails, at the latest at the end.
pub(super) fn run(mut checks: Vec<Check<'_>>, input: &Queue, out: &Queue, meter: &Meter) -> Result<(), Halt> {
    let mut bytes = 0;
    while let Some(buffer) = input.recv(meter)? {
        checks.iter_mut().try_for_each(|check| check.update(buffer.filled()))?;
        bytes += buffer.filled().len() as u64;
        out.send(buffer);
    }
    out.close();
    checks.into_iter().try_for_each(|check| check.finish(bytes)).map_err(Halt::Failed)
}
