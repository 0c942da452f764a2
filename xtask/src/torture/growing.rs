//! A verified image is on the disk, and the kernel has a file system of it grow. What it writes then is no part of the image, and is
//! judged as file systems are.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result, bail};

use super::record::{BLOCK, FILE};
use crate::command::command;
use crate::power_cut;
use crate::tables;
use crate::write_log::Request;

/// What a file system expects to be written whole, in bytes: a block of its own. The superblock of ext4 is in no journal, and none of
/// its copies is tried when it is mounted; that goes for every mount of it, whoever does it.
pub(super) const WHOLE: usize = BLOCK;

/// The last part of a run.
pub(super) struct Growing {
    /// The disk when it begins.
    pub(super) before: Vec<u8>,
    /// Requests of the recording up to there.
    at: usize,
    /// What is written from then on.
    written: Vec<Range<usize>>,
    /// The partition with the file system.
    partition: Range<usize>,
    /// What is in the file of that.
    content: Vec<u8>,
}

impl Growing {
    /// Finds the flush behind which the disk has the table that it keeps. `requests` are those of the run, the first of them the one of
    /// that number in the recording. It is an error if the file system did not grow, or lost its file.
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
            match tables::is_protected(&disk) && tables::find(&disk) == tables {
                false => begins = None,
                true if begins.is_none() => begins = Some((disk.clone(), index + 1)),
                true => {}
            }
        }
        let reached = tables.iter().flat_map(|table| table.reaches.clone());
        let partition = reached.max_by_key(|bytes| bytes.start).context("finding the partition that grew")?;
        let (before, from) = begins.context("finding the flush after which the table is there")?;
        let written = requests[from..].iter().filter_map(|request| match request {
            Request::Write { offset, bytes } => Some(*offset as usize..*offset as usize + bytes.len()),
            _ => None,
        });
        let written = written.filter(|bytes| partition.start <= bytes.start && bytes.end <= partition.end).collect();
        let [small, large] = [&before, &last].map(|disk| blocks(&disk[partition.clone()]));
        if small >= large {
            bail!("finding what the kernel wrote to grow a file system: it has {large} blocks, as before");
        }
        let file = |disk: &[u8]| file(&disk[partition.clone()])?.context("the file system is not in order");
        let content = file(&before).context("looking at the file system before it grew")?;
        if content.is_empty() || content != file(&last).context("looking at the file system that grew")? {
            bail!("comparing /{FILE} before and after its file system grew: it is not what it was");
        }
        Ok(Self { before, at: first + from, written, partition, content })
    }

    /// Whether some of it comes before a request of that number.
    pub(super) fn has_begun(&self, at: usize) -> bool {
        at > self.at
    }

    /// Takes back what was written since, so that the rest can be compared. False if what the kernel finds there is no whole file system
    /// with the file that was in it.
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

/// How many blocks an ext4 has, by its superblock (kernel documentation, filesystems/ext4/super.rst).
fn blocks(file_system: &[u8]) -> u32 {
    let count = file_system.get(1028..1032).and_then(|bytes| bytes.try_into().ok());
    count.map_or(0, u32::from_le_bytes)
}

/// What is in the file of a file system; nothing where e2fsck would ask before it mends.
fn file(file_system: &[u8]) -> Result<Option<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file-system");
    fs::write(&path, file_system).with_context(|| format!("writing {}", path.display()))?;
    let checked = output("e2fsck", &["-f", "-p"], &path)?;
    // 0: nothing was wrong; 1: it was, and is mended.
    if !matches!(checked.status.code(), Some(0 | 1)) {
        return Ok(None);
    }
    Ok(Some(output("debugfs", &["-R", &format!("cat /{FILE}")], &path)?.stdout))
}

fn output(program: &str, arguments: &[&str], path: &Path) -> Result<Output> {
    command(program, arguments).arg(path).output().with_context(|| format!("running {program} on {}", path.display()))
}
