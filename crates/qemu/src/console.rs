//! What a machine wrote to its serial port, from the port's log file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The log of a serial port. Each search starts at the end of the last match.
pub struct Console {
    log: PathBuf,
    /// Number of bytes of [`Console::text`] that searches have passed.
    seen: usize,
}

impl Console {
    /// The console with this log file, which need not exist yet.
    pub fn new(log: &Path) -> Self {
        Self { log: log.to_owned(), seen: 0 }
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns everything written so far, without terminal control sequences.
    pub fn text(&self) -> Result<String> {
        match fs::read(&self.log) {
            Ok(bytes) => Ok(plain(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("reading {}", self.log.display())),
        }
    }

    /// Returns the last `lines` lines.
    pub fn end(&self, lines: usize) -> Result<String> {
        let text = self.text()?;
        let all: Vec<&str> = text.trim_end().lines().collect();
        Ok(all[all.len().saturating_sub(lines)..].join("\n"))
    }

    /// Whether the text appears after the last match.
    pub fn find(&mut self, wanted: &str) -> Result<bool> {
        let text = self.text()?;
        let found = text.get(self.seen..).and_then(|rest| rest.find(wanted));
        self.seen += found.map_or(0, |at| at + wanted.len());
        Ok(found.is_some())
    }

    /// Returns the first complete line with the text after the last match. `None` if there is no such line yet.
    pub fn find_line(&mut self, wanted: &str) -> Result<Option<String>> {
        let text = self.text()?;
        let Some(at) = text.get(self.seen..).and_then(|rest| rest.find(wanted)).map(|at| self.seen + at) else {
            return Ok(None);
        };
        let Some(end) = text[at..].find('\n').map(|newline| at + newline) else { return Ok(None) };
        self.seen = end;
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        Ok(Some(text[start..end].trim_end().to_owned()))
    }
}

/// Removes control sequences (ECMA-48, section 5.4: CSI, parameters, final byte) and carriage returns. An incomplete
/// sequence at the end is left out, so that the text only ever grows.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => {
                if rest.next() == Some('[') {
                    rest.find(|c| ('\x40'..='\x7e').contains(c));
                }
            }
            '\r' | '\0' => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_do_not_hide_text() {
        assert_eq!(
            plain("[\x1b[0;32m  OK  \x1b[0m] Star\x1b[1Kted\r\n\x1b[2J\x1b[01;01Hlogin:\x1b[0"),
            "[  OK  ] Started\nlogin:"
        );
    }

    #[test]
    fn each_search_goes_on_behind_the_last() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let mut console = Console::new(&log);
        assert_eq!((console.find("boot")?, console.find_line("boot")?), (false, None));
        fs::write(&log, "first boot\r\nsecond \x1b[1mboot\x1b[0m now\r\nthird boot of a")?;
        assert!(console.find("boot")?);
        assert_eq!(console.find_line("boot")?.as_deref(), Some("second boot now"));
        assert_eq!(console.find_line("boot")?, None, "more of the line may come");
        assert!(console.find("boot")?);
        assert!(!console.find("boot")?);
        Ok(())
    }
}
