//! The machine's log: the last lines for a failure report, and all lines for the server.
//!
//! In the boot image this is the kernel's log, which includes drivers, disk errors, PID 1 and its children. It survives
//! the installer, so a restarted installer continues after the last acknowledged line.

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Number of lines kept for a failure report.
const TAIL: usize = 20;
/// Maximum number of bytes kept while the server is away. The oldest lines are dropped.
const KEPT: usize = 1 << 20;
/// Maximum size of a chunk in bytes.
const CHUNK: usize = 128 << 10;
/// Longest record of /dev/kmsg (`CONSOLE_EXT_LOG_MAX`, 8192 in kernel/printk/printk.c).
const LONGEST_RECORD: usize = 8192;

/// The log, shared by its writer and readers.
#[derive(Clone, Debug, Default)]
pub struct LogBook {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    tail: VecDeque<String>,
    /// The record number in the kernel's log, and the line with its line break.
    unsent: VecDeque<(u64, String)>,
    unsent_bytes: usize,
    /// The position where `unsent` begins.
    sent: Sent,
    /// File that keeps `sent` for the next installer.
    kept_in: Option<PathBuf>,
}

/// How much of the log the server has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    /// Bytes since the first line of this boot.
    bytes: u64,
    /// The kernel's record number of the first unsent line.
    next: u64,
}

/// A piece of the log to send to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Start position, in bytes since the first line of this boot.
    pub offset: u64,
    /// Whole lines.
    pub text: String,
    lines: usize,
}

/// Removes a bootstrap token from a line. The kernel logs its command line, which may contain one.
fn without_token(line: String) -> String {
    const KEY: &str = "slipway.token=";
    let Some((before, rest)) = line.split_once(KEY) else { return line };
    let end = match rest.strip_prefix('"') {
        Some(quoted) => quoted.find('"').map_or(rest.len(), |at| at + 2),
        None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
    };
    format!("{before}{KEY}(secret){}", without_token(rest.get(end..).unwrap_or_default().to_owned()))
}

impl LogBook {
    /// Follows the kernel's log in a separate thread, starting at the first line that the server does not have.
    pub fn of_kernel(state: &Path) -> std::io::Result<Self> {
        let book = Self::default();
        let sent = std::fs::read(state).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        {
            let mut inner = book.lock();
            inner.sent = sent;
            inner.kept_in = Some(state.to_owned());
        }
        let kmsg = std::fs::File::open("/dev/kmsg")?;
        let writer = book.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.follow(kmsg))?;
        Ok(book)
    }

    fn follow(&self, mut kmsg: std::fs::File) {
        let mut buffer = vec![0u8; LONGEST_RECORD];
        loop {
            match kmsg.read(&mut buffer) {
                Ok(length) => {
                    let record = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                    if let Some((number, line)) = parse_record(&record) {
                        self.add(number, line);
                    }
                }
                // EPIPE: the kernel overwrote the next record. The next read continues after it.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Adds a line that is not from the kernel's log.
    pub fn add_line(&self, line: &str) {
        let number = {
            let inner = self.lock();
            inner.unsent.back().map_or(inner.sent.next, |(number, _)| number + 1)
        };
        self.add(number, line.to_owned());
    }

    fn add(&self, number: u64, line: String) {
        let line = without_token(line);
        let mut inner = self.lock();
        inner.tail.push_back(line.clone());
        if inner.tail.len() > TAIL {
            inner.tail.pop_front();
        }
        if number < inner.sent.next {
            return;
        }
        inner.unsent_bytes += line.len() + 1;
        inner.unsent.push_back((number, line + "\n"));
        while inner.unsent_bytes > KEPT {
            inner.drop_front();
        }
    }

    /// Returns the last lines, oldest first.
    pub fn tail(&self) -> Vec<String> {
        self.lock().tail.iter().cloned().collect()
    }

    /// Returns the next chunk to send, if any.
    pub fn chunk(&self) -> Option<Chunk> {
        let inner = self.lock();
        let mut chunk = Chunk { offset: inner.sent.bytes, text: String::new(), lines: 0 };
        for (_, line) in &inner.unsent {
            if !chunk.text.is_empty() && chunk.text.len() + line.len() > CHUNK {
                break;
            }
            chunk.text.push_str(line);
            chunk.lines += 1;
        }
        (chunk.lines > 0).then_some(chunk)
    }

    /// Drops the lines that the server has stored.
    pub fn acknowledge(&self, chunk: &Chunk) {
        let mut inner = self.lock();
        // If lines were dropped meanwhile, `unsent` begins later.
        let end = chunk.offset + chunk.text.len() as u64;
        while inner.sent.bytes < end && !inner.unsent.is_empty() {
            inner.drop_front();
        }
        let kept = inner.kept_in.clone().zip(serde_json::to_vec(&inner.sent).ok());
        drop(inner);
        if let Some((path, text)) = kept {
            // Without the file, a restarted installer sends some lines again, and the server skips them.
            let _ = crate::files::write_whole(&path, &text);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn drop_front(&mut self) {
        if let Some((number, line)) = self.unsent.pop_front() {
            self.unsent_bytes -= line.len();
            self.sent = Sent { bytes: self.sent.bytes + line.len() as u64, next: number + 1 };
        }
    }
}

/// Parses a record of /dev/kmsg: `PRIORITY,NUMBER,MICROSECONDS,FLAGS[,...];TEXT`, then lines of `KEY=VALUE`
/// (Documentation/ABI/testing/dev-kmsg). Returns the record's number, and the line as dmesg prints it.
pub fn parse_record(record: &str) -> Option<(u64, String)> {
    let (prefix, rest) = record.split_once(';')?;
    let mut fields = prefix.split(',').skip(1);
    let number = fields.next()?.parse().ok()?;
    let micros: u64 = fields.next()?.parse().ok()?;
    let text = rest.lines().next().unwrap_or_default();
    Some((number, format!("[{:5}.{:06}] {text}", micros / 1_000_000, micros % 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_on_the_kernels_command_line_is_not_uploaded() {
        let book = LogBook::default();
        book.add_line("Command line: quiet slipway.token=abc= slipway.server=https://s slipway.token=\"d e\" end");
        let expect = "Command line: quiet slipway.token=(secret) slipway.server=https://s slipway.token=(secret) end";
        assert_eq!(book.tail(), [expect]);
    }

    #[test]
    fn a_kernel_record_reads_as_dmesg_shows_it() {
        let record = "6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=net\n DEVICE=+net:lo\n";
        assert_eq!(parse_record(record), Some((339, "[    5.140900] NET: Registered protocol family 10".to_owned())));
        assert_eq!(parse_record("nonsense"), None);
        assert_eq!(parse_record("6,x,1;a"), None);
    }

    #[test]
    fn a_restarted_installer_goes_on_where_the_server_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("log.json");
        let book = LogBook::default();
        book.lock().kept_in = Some(state.clone());
        book.add(7, "one".into());
        book.add(8, "two".into());
        let chunk = book.chunk().unwrap();
        assert_eq!((chunk.offset, chunk.text.as_str()), (0, "one\ntwo\n"));
        book.add(9, "three".into());
        book.acknowledge(&chunk);

        let next = LogBook::default();
        next.lock().sent = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
        for (number, line) in [(7, "one"), (8, "two"), (9, "three")] {
            next.add(number, line.into());
        }
        let chunk = next.chunk().unwrap();
        assert_eq!((chunk.offset, chunk.text.as_str()), (8, "three\n"));
        assert_eq!(next.tail(), ["one", "two", "three"]);
    }

    #[test]
    fn a_server_that_stays_away_costs_bounded_memory() {
        let book = LogBook::default();
        let line = "x".repeat(1023);
        for number in 0..2000 {
            book.add(number, line.clone());
        }
        let chunk = book.chunk().unwrap();
        assert_eq!(chunk.offset, 976 * 1024, "the oldest lines gave way");
        assert!(book.lock().unsent_bytes <= KEPT);
    }
}
