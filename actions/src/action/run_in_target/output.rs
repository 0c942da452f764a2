//! Turns the output of a command into notes, at a limited rate.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::report::{Report, Tell};

/// Maximum burst of notes, and the interval at which another is allowed.
const BURST: u32 = 100;
const NOTE_EVERY: Duration = Duration::from_millis(100);
/// Maximum bytes kept of a line, and number of last lines kept.
const MAX_LINE: usize = 1024;
const TAIL: usize = 20;

/// Splits the output of a command into lines, and keeps the last lines.
pub(super) struct Output {
    line: Vec<u8>,
    tail: VecDeque<String>,
    /// Notes still allowed, as of `since`.
    left: u32,
    since: Instant,
    /// Number of lines that were not reported as notes.
    left_out: u64,
}

impl Default for Output {
    fn default() -> Self {
        Self { line: Vec::new(), tail: VecDeque::new(), left: BURST, since: Instant::now(), left_out: 0 }
    }
}

impl Output {
    /// Takes some output.
    pub(super) fn take(&mut self, bytes: &[u8], report: Tell) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end_line(report),
                // The rest of a line that is too long is dropped.
                _ if self.line.len() < MAX_LINE => self.line.push(*byte),
                _ => {}
            }
        }
    }

    /// Ends the output.
    pub(super) fn finish(&mut self, report: Tell) {
        self.end_line(report);
        self.tell_left_out(report);
    }

    /// Returns the last lines.
    pub(super) fn tail(self) -> Vec<String> {
        self.tail.into()
    }

    fn end_line(&mut self, report: Tell) {
        let text = String::from_utf8_lossy(&self.line);
        // Without control characters, because notes are shown on consoles.
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        self.line.clear();
        if text.trim().is_empty() {
            return;
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(text.clone());
        let more = self.since.elapsed().as_millis() / NOTE_EVERY.as_millis();
        if more > 0 {
            self.left = self.left.saturating_add(u32::try_from(more).unwrap_or(BURST)).min(BURST);
            self.since = Instant::now();
        }
        if self.left == 0 {
            self.left_out += 1;
            return;
        }
        self.left -= 1;
        self.tell_left_out(report);
        report(Report::Note(text));
    }

    fn tell_left_out(&mut self, report: Tell) {
        if self.left_out > 0 {
            report(Report::Note(format!("{} lines of output were left out", self.left_out)));
            self.left_out = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(printed: &[&[u8]]) -> (Vec<String>, Vec<String>) {
        let mut output = Output::default();
        let mut notes = Vec::new();
        let mut report = |report| match report {
            Report::Note(note) => notes.push(note),
            Report::Progress(_) => {}
        };
        for bytes in printed {
            output.take(bytes, &mut report);
        }
        output.finish(&mut report);
        (notes, output.tail())
    }

    #[test]
    fn lines_are_put_together_and_cleaned() {
        let (notes, _) = notes(&[b"on", b"e\n\ntw\x1bo\r\n", b"\xffx", b""]);
        assert_eq!(notes, ["one", "two", "\u{FFFD}x"]);
    }

    #[test]
    fn a_flood_is_counted_and_its_end_is_kept() {
        let flood: Vec<u8> = (0..5000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (notes, tail) = notes(&[&flood, &vec![b'x'; 9000]]);
        let left_out = |note: &String| note.strip_suffix(" lines of output were left out")?.parse::<usize>().ok();
        let (told, missing): (Vec<&String>, Vec<&String>) = notes.iter().partition(|note| left_out(note).is_none());
        let missing: usize = missing.into_iter().filter_map(left_out).sum();
        assert_eq!((told[0].as_str(), told.len() + missing), ("line 0", 5001));
        assert!(told.len() < 1000, "{}", told.len());
        assert_eq!((tail.len(), tail[18].as_str(), tail[19].len()), (TAIL, "line 4999", MAX_LINE));
    }
}
