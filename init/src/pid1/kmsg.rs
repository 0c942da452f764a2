//! The log of the boot image is the kernel log (`/dev/kmsg`, Documentation/ABI/testing/dev-kmsg of the kernel).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use slipway_protocol::shared::printable;

/// Longest text of a record in bytes. The kernel truncates at 1024 minus its prefix (`PRINTKRB_RECORD_MAX`,
/// kernel/printk/printk.c).
const LONGEST: usize = 900;

/// Severity, numbered as in syslog(3). Children begin a line with the number, as in sd-daemon(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Error = 3,
    Warning = 4,
    Notice = 5,
    Info = 6,
    Debug = 7,
}

/// Writes records to the kernel log, or to standard error if there is none.
#[derive(Clone, Debug)]
pub struct Kmsg {
    file: Option<Arc<File>>,
}

impl Kmsg {
    pub fn open() -> Self {
        // By default the kernel accepts ten lines in five seconds and drops others, such as the output of a failing
        // child.
        let unlimited = std::fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
        let log = Self { file: OpenOptions::new().write(true).open("/dev/kmsg").ok().map(Arc::new) };
        if let Err(error) = unlimited {
            log.write(Level::Warning, &format!("lifting the rate limit of /dev/kmsg: {error}"));
        }
        log
    }

    /// Writes text with PID 1's name.
    pub fn write(&self, level: Level, text: &str) {
        self.write_as("init", level, text);
    }

    /// Writes text with a child's name. Each line is a record; long lines are split.
    pub fn write_as(&self, name: &str, level: Level, text: &str) {
        for line in text.lines() {
            // Control characters are removed, because the kernel writes a record to every console unchanged.
            let line = printable::line(line);
            let mut rest = &*line;
            loop {
                let (piece, tail) = rest.split_at(floor_char_boundary(rest, LONGEST));
                self.record(name, level, piece);
                if tail.is_empty() {
                    break;
                }
                rest = tail;
            }
        }
    }

    /// Writes a line that a child printed, with the level that a leading `<6>` sets.
    pub fn pass_on(&self, name: &str, line: &str) {
        let (level, text) = split_level(line);
        self.write_as(name, level, text);
    }

    fn record(&self, name: &str, level: Level, text: &str) {
        let record = format!("<{}>slipway {name}: {text}\n", level as u8);
        // One write is one record. A failure cannot be reported anywhere.
        let _ = match &self.file {
            Some(file) => (&**file).write_all(record.as_bytes()),
            None => std::io::stderr().write_all(record.as_bytes()),
        };
    }
}

fn split_level(line: &str) -> (Level, &str) {
    let level = match line.get(..3) {
        Some("<0>" | "<1>" | "<2>" | "<3>") => Level::Error,
        Some("<4>") => Level::Warning,
        Some("<5>") => Level::Notice,
        Some("<6>") => Level::Info,
        Some("<7>") => Level::Debug,
        _ => return (Level::Info, line),
    };
    (level, line.get(3..).unwrap_or_default())
}

fn floor_char_boundary(text: &str, most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_marks_its_lines_as_sd_daemon_does() {
        assert_eq!(split_level("<4>hot"), (Level::Warning, "hot"));
        assert_eq!(split_level("plain <4>"), (Level::Info, "plain <4>"));
        assert_eq!(split_level("<9>odd"), (Level::Info, "<9>odd"));
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(floor_char_boundary("abc", 900), 3);
        assert_eq!(floor_char_boundary("aé", 2), 1);
    }
}
