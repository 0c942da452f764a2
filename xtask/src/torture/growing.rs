//! A verified image is on the disk, and the kernel has a file system of it grow. What it writes then is no part of the image, and is
//! judged as file systems are.
//!
//! ext4 expects of a disk that it writes a block whole, as those with physical blocks of 4096 bytes do: its superblock, of 1024, is in no
//! journal, and none of its copies is tried when it is mounted. That goes for every mount of it, whoever does it.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result};

use super::record::FILE;
use crate::command::command;
use crate::power_cut;
use crate::tables;
use crate::write_log::Request;

/// What ext4 expects to be written whole, in bytes.
pub(super) const WHOLE: usize = 4096;

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
}

impl Growing {
    /// Finds the flush behind which the disk has the table that it keeps. `requests` are those of the run, the first of them the one of
    /// that number in the recording.
    pub(super) fn find(old: &[u8], requests: &[Request], first: usize) -> Self {
        let mut last = old.to_vec();
        requests.iter().for_each(|request| power_cut::apply(&mut last, request));
        let tables = tables::find(&last);
        let (mut disk, mut before, mut from) = (old.to_vec(), None, 0);
        for (index, request) in requests.iter().enumerate() {
            power_cut::apply(&mut disk, request);
            if *request != Request::Flush {
                continue;
            }
            match tables::is_protected(&disk) && tables::find(&disk) == tables {
                false => before = None,
                true if before.is_none() => (before, from) = (Some(disk.clone()), index + 1),
                true => {}
            }
        }
        let written = requests[from..].iter().filter_map(|request| match request {
            Request::Write { offset, bytes } => Some(*offset as usize..*offset as usize + bytes.len()),
            _ => None,
        });
        let reached = tables.iter().flat_map(|table| table.reaches.clone());
        let partition = reached.max_by_key(|bytes| bytes.start).unwrap_or_default();
        Self { before: before.unwrap_or(last), at: first + from, written: written.collect(), partition }
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
        let is_whole = file(&disk[self.partition.clone()])? == file(&self.before[self.partition.clone()])?;
        for bytes in self.written.iter().filter(|bytes| bytes.start >= self.partition.start) {
            disk[bytes.clone()].copy_from_slice(&self.before[bytes.clone()]);
        }
        Ok(is_whole)
    }
}

/// What is in the file of a file system, once its journal has been gone through; nothing where more is to be mended than that.
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
