//! A file system that the kernel grows after a verified image was written. The kernel's writes are not part of the
//! image, so they are checked with file system tools.

use std::ops::Range;
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result, bail, ensure};

use super::record::{BLOCK, FILE};
use crate::host::command::command;
use crate::host::files;
use crate::lab::write_log::Request;
use crate::lab::{power_cut, tables};

/// Size in bytes of the pieces that a file system expects the disk to write atomically: one block of the file system.
/// ext4's superblock is not in a journal, and mount never tries its copies.
pub(super) const WHOLE: usize = BLOCK;

/// The part of a run during which the file system grows.
pub(super) struct Growing {
    /// Content of the disk when this part begins.
    pub(super) before: Vec<u8>,
    /// Number of requests in the recording before this part.
    at: usize,
    /// Byte ranges that were written in this part.
    written: Vec<Range<usize>>,
    /// The partition with the file system.
    partition: Range<usize>,
    /// Content of the file [`FILE`] in the file system.
    content: Vec<u8>,
}

impl Growing {
    /// Finds the flush after which the disk has its final partition table. `requests` are the run's requests, and
    /// `first` is the number of the first of them in the recording. Fails if the file system did not grow or lost its
    /// file.
    pub(super) fn find(old: &[u8], requests: &[Request], first: usize) -> Result<Self> {
        let mut last = old.to_vec();
        requests.iter().for_each(|request| power_cut::apply(&mut last, request));
        let tables = tables::find(&last);
        let (mut disk, mut begins) = (old.to_vec(), None);
        for (index, request) in requests.iter().enumerate() {
            power_cut::apply(&mut disk, request);
            if *request != Request::Flush {
                continue;
            }
            // The table may be overwritten again, so only the flush after which it stays counts.
            match tables::is_protected(&disk) && tables::find(&disk) == tables {
                false => begins = None,
                true if begins.is_none() => begins = Some((disk.clone(), index + 1)),
                true => {}
            }
        }
        let reached = tables.iter().flat_map(|table| table.reaches.clone());
        let partition = reached.max_by_key(|bytes| bytes.start).context("finding the partition that grew")?;
        let (before, from) = begins.context("finding the flush after which the table is complete")?;
        let written = requests[from..].iter().filter_map(|request| match request {
            Request::Write { offset, bytes } => Some(*offset as usize..*offset as usize + bytes.len()),
            _ => None,
        });
        let written = written.filter(|bytes| partition.start <= bytes.start && bytes.end <= partition.end).collect();
        let [small, large] = [&before, &last].map(|disk| blocks(&disk[partition.clone()]));
        ensure!(
            small < large,
            "finding what the kernel wrote to grow a file system: it did not grow, and still has {large} blocks"
        );
        let file = |disk: &[u8]| file(&disk[partition.clone()])?.context("e2fsck finds errors that need a decision");
        let content = file(&before).context("looking at the file system before it grew")?;
        if content.is_empty() || content != file(&last).context("looking at the file system that grew")? {
            bail!("comparing /{FILE} before and after its file system grew: it has changed");
        }
        Ok(Self { before, at: first + from, written, partition, content })
    }

    /// Whether this part begins before request `at`.
    pub(super) fn has_begun(&self, at: usize) -> bool {
        at > self.at
    }

    /// Undoes the writes of this part, so that the other content can be compared. Returns false if the kernel would not
    /// find a valid file system with [`FILE`] on the disk.
    pub(super) fn undo(&self, disk: &mut [u8], at: usize) -> Result<bool> {
        if !self.has_begun(at) {
            return Ok(true);
        }
        let is_whole = file(&disk[self.partition.clone()])?.as_ref() == Some(&self.content);
        for bytes in &self.written {
            disk[bytes.clone()].copy_from_slice(&self.before[bytes.clone()]);
        }
        Ok(is_whole)
    }
}

/// Reads the number of blocks of an ext4 from its superblock (kernel documentation, filesystems/ext4/super.rst).
fn blocks(file_system: &[u8]) -> u32 {
    let count = file_system.get(1028..1032).and_then(|bytes| bytes.try_into().ok());
    count.map_or(0, u32::from_le_bytes)
}

/// Reads the content of [`FILE`] in a file system. `None` if e2fsck would ask before a repair.
fn file(file_system: &[u8]) -> Result<Option<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file-system");
    files::write(&path, file_system)?;
    let checked = output("e2fsck", &["-f", "-p"], &path)?;
    // 0: no errors; 1: errors were repaired.
    if !matches!(checked.status.code(), Some(0 | 1)) {
        return Ok(None);
    }
    Ok(Some(output("debugfs", &["-R", &format!("cat /{FILE}")], &path)?.stdout))
}

fn output(program: &str, arguments: &[&str], path: &Path) -> Result<Output> {
    command(program, arguments).arg(path).output().with_context(|| format!("running {program} on {}", path.display()))
}
