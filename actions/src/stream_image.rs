//! `stream-image`: puts an image on a disk while it is fetched.

use slipway_protocol::StreamImage;

use crate::error::Error;
use crate::fetch::{self, FetchError};
use crate::grow::Growth;
use crate::machine::Machine;
use crate::open_disk::{Access, OpenDisk};
use crate::partitions::{Fitted, Moved};
use crate::stream::{self, Reading, Written};
use crate::{Done, Report, choose, grow, text};

/// How often a source that cannot be resumed is fetched from its beginning again.
const RESTARTS: u32 = 3;

pub(crate) fn run(inputs: &StreamImage, machine: &dyn Machine, report: &mut dyn FnMut(Report)) -> Result<Done, Error> {
    if inputs.url.starts_with("http://") && inputs.digest.is_none() && inputs.raw_digest.is_none() {
        return Err(Error::Fetch { url: fetch::shown(&inputs.url), source: FetchError::PlainHttp });
    }
    let disk = choose::open(&inputs.disk, Access::Write, machine, report)?;
    let source = fetch::local_path(&inputs.url).and_then(|path| std::fs::metadata(path).ok());
    if source.is_some_and(|source| disk.holds(&source)) {
        return Err(Error::SourceOnTarget { url: fetch::shown(&inputs.url), disk: disk.path().to_owned() });
    }
    if let Some(raw_size) = inputs.raw_size.filter(|raw_size| *raw_size > disk.size()) {
        let needed = format!("{raw_size}");
        return Err(Error::ImageTooLarge { disk: disk.path().to_owned(), size: disk.size(), needed });
    }
    let (written, Fitted { moved, growth }) = write(inputs, &disk, machine, report)?;
    let mut warnings = Vec::new();
    if inputs.digest.is_none() && inputs.raw_digest.is_none() {
        warnings.push("the image was written without a digest to check it against".to_owned());
    }
    if written.resumes > 0 {
        warnings.push(format!("the connection was dropped and resumed {} times", written.resumes));
    }
    if moved == Moved::NotPossible {
        warnings.push("the backup partition table stays at the end of the image, not of the disk".to_owned());
    }
    if let Err(errno) = disk.reread_partitions() {
        warnings.push(format!("the kernel does not know the new partitions of {} yet: {errno}", disk.path()));
    }
    let mut summary = format!(
        "wrote {} to {} from {} of {} data",
        text::size(written.raw_size),
        disk.path(),
        text::size(written.fetched),
        written.format
    );
    let path = disk.path().to_owned();
    // A partition of a disk that is held cannot be mounted.
    drop(disk);
    match growth {
        Growth::NotNeeded => {}
        Growth::Left { partition, reason } => summary.push_str(&format!("; did not grow {partition}: {reason}")),
        Growth::Grown(grown) => {
            let (done, warning) = grow::finish(&path, &grown);
            summary.push_str(&format!("; {done}"));
            warnings.extend(warning);
        }
    }
    Ok(Done::go_on(summary, warnings))
}

fn write(
    inputs: &StreamImage,
    disk: &OpenDisk,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<(Written, Fitted), Error> {
    let mut restarts = 0;
    let mut reading = Reading::Stream;
    loop {
        match stream::run(inputs, reading, disk, machine, report) {
            // A digest of the stream needs every byte of it once, in its order.
            Err(error) if inputs.digest.is_none() && reading == Reading::Stream && needs_ranges(&error) => {
                report(Report::Note(format!("reading by ranges: {}", text::chain(&error))));
                reading = Reading::Ranges;
            }
            Err(Error::Fetch { source: source @ FetchError::NotResumable { .. }, .. }) if restarts < RESTARTS => {
                restarts += 1;
                report(Report::Note(format!("starting over: {source}")));
            }
            other => return other,
        }
    }
}

/// Whether a qcow2 image can be read, but not in one pass.
fn needs_ranges(error: &Error) -> bool {
    use stream::qcow2::Error::{NotInOrder, TooManyPending};
    matches!(error, Error::Qcow2Order { .. } | Error::Qcow2 { source: NotInOrder { .. } | TooManyPending { .. } })
}
