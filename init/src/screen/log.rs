//! The kernel's log, followed from its first message.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;
use slipway_installer::report::log_book::parse_record;
use slipway_protocol::shared::printable;

/// Number of lines that are kept. The first messages of a kernel are about 600.
const KEPT: usize = 2000;
/// Longest record of /dev/kmsg (`CONSOLE_EXT_LOG_MAX`, 8192 in kernel/printk/printk.c).
const LONGEST_RECORD: usize = 8192;

/// The last lines of the log, safe for a terminal. Clones share them.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    /// Number of the first of the kept lines, counted from 0.
    first: usize,
    kept: VecDeque<String>,
}

impl Log {
    /// Follows the log in a thread of its own.
    pub fn follow() -> Result<Self> {
        let log = Self::default();
        let (mut kmsg, follower) = (File::open("/dev/kmsg")?, log.clone());
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            let mut buffer = vec![0; LONGEST_RECORD];
            loop {
                match kmsg.read(&mut buffer) {
                    Ok(length) => {
                        let record = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                        if let Some((_, line)) = parse_record(&record) {
                            follower.add(&line);
                        }
                    }
                    // EPIPE: the kernel overwrote the next record. The next read continues after it.
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(log)
    }

    pub(super) fn add(&self, line: &str) {
        let mut lines = self.lock();
        lines.kept.push_back(printable::line(line).into_owned());
        if lines.kept.len() > KEPT {
            lines.kept.pop_front();
            lines.first += 1;
        }
    }

    /// Returns the lines from number `next` on, and the number of the line after them.
    pub fn since(&self, next: usize) -> (Vec<String>, usize) {
        let lines = self.lock();
        let new = lines.kept.iter().skip(next.saturating_sub(lines.first)).cloned().collect();
        (new, lines.first + lines.kept.len())
    }

    /// Returns the last lines.
    pub fn tail(&self, most: usize) -> Vec<String> {
        let lines = self.lock();
        lines.kept.iter().skip(lines.kept.len().saturating_sub(most)).cloned().collect()
    }

    /// Returns how many lines there have been.
    pub fn count(&self) -> usize {
        let lines = self.lock();
        lines.first + lines.kept.len()
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
