//! The bounds of an event. The server refuses an event that exceeds them.

use super::{DiskErasure, Erasure, Event, EventKind, Failure, Outcome};

/// The longest text in an event, in bytes.
pub const MAX_EVENT_TEXT_BYTES: usize = 8 << 10;
/// The most bytes of all texts in an event together. Each text counts as 16 bytes more than it has.
pub const MAX_EVENT_BYTES: usize = 64 << 10;
/// The largest difference between the sequence numbers of an event and of the last stored event. Numbers are skipped
/// only for progress that was not sent, at most two per second, which is enough for five days without the server.
pub const MAX_SEQ_GAP: u64 = 1_000_000;
/// The bytes that a text counts as in addition to its own, so that the number of empty texts is bounded too.
const TEXT_OVERHEAD: usize = 16;

impl Event {
    /// Returns why the server refuses the event, whatever its run. None if the event is within the bounds.
    pub fn problem(&self) -> Option<String> {
        let (seq, texts) = (self.seq, self.kind.texts());
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        if longest > MAX_EVENT_TEXT_BYTES {
            return Some(format!(
                "event {seq} has a text of {longest} bytes, but at most {MAX_EVENT_TEXT_BYTES} are allowed"
            ));
        }
        let bytes = size(&texts);
        (bytes > MAX_EVENT_BYTES)
            .then(|| format!("event {seq} has {bytes} bytes of text, but at most {MAX_EVENT_BYTES} are allowed"))
    }
}

impl EventKind {
    /// Cuts whatever is beyond the bounds: the end of each text that is too long, then the oldest log lines, then the
    /// innermost causes, the last warnings and the last disks.
    pub fn fit(&mut self) {
        self.texts_mut().into_iter().for_each(cut);
        while size(&self.texts()) > MAX_EVENT_BYTES {
            if !self.drop_one() {
                return;
            }
        }
    }

    /// Drops the least useful text. Returns false if no text can be dropped.
    fn drop_one(&mut self) -> bool {
        match self {
            EventKind::Retrying(failure) | EventKind::Failed(failure) | EventKind::TimedOut(failure) => {
                if failure.log_tail.is_empty() {
                    failure.causes.pop().is_some()
                } else {
                    failure.log_tail.remove(0);
                    true
                }
            }
            EventKind::Succeeded(outcome) => outcome.warnings.pop().is_some() || outcome.disks.pop().is_some(),
            EventKind::Started | EventKind::Progress(_) | EventKind::Note(_) | EventKind::Skipped => false,
        }
    }

    fn texts(&self) -> Vec<&String> {
        match self {
            EventKind::Started | EventKind::Progress(_) | EventKind::Skipped => Vec::new(),
            EventKind::Note(note) => vec![note],
            EventKind::Retrying(failure) | EventKind::Failed(failure) | EventKind::TimedOut(failure) => {
                let Failure { reason, causes, log_tail } = failure;
                [reason].into_iter().chain(causes).chain(log_tail).collect()
            }
            EventKind::Succeeded(outcome) => {
                let Outcome { summary, warnings, left_out: _, peak_memory: _, disks, image } = outcome;
                let disks = disks.iter().flat_map(|DiskErasure { path, serial, result }| {
                    let (Erasure::Erased { method: text, .. } | Erasure::Skipped { reason: text }) = result;
                    [path, text].into_iter().chain(serial)
                });
                let image = image.iter().map(|image| &image.name);
                [summary].into_iter().chain(warnings).chain(disks).chain(image).collect()
            }
        }
    }

    fn texts_mut(&mut self) -> Vec<&mut String> {
        match self {
            EventKind::Started | EventKind::Progress(_) | EventKind::Skipped => Vec::new(),
            EventKind::Note(note) => vec![note],
            EventKind::Retrying(failure) | EventKind::Failed(failure) | EventKind::TimedOut(failure) => {
                let Failure { reason, causes, log_tail } = failure;
                [reason].into_iter().chain(causes).chain(log_tail).collect()
            }
            EventKind::Succeeded(outcome) => {
                // An image keeps its name: it comes from the step, and is bounded.
                let Outcome { summary, warnings, left_out: _, peak_memory: _, disks, image: _ } = outcome;
                let disks = disks.iter_mut().flat_map(|DiskErasure { path, serial, result }| {
                    let (Erasure::Erased { method: text, .. } | Erasure::Skipped { reason: text }) = result;
                    [path, text].into_iter().chain(serial)
                });
                [summary].into_iter().chain(warnings).chain(disks).collect()
            }
        }
    }
}

fn size(texts: &[&String]) -> usize {
    texts.iter().map(|text| text.len() + TEXT_OVERHEAD).sum()
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_EVENT_TEXT_BYTES));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &EventKind) -> Option<String> {
        Event { seq: 7, at: 1, step: 0, attempt: 1, kind: kind.clone() }.problem()
    }

    #[test]
    fn what_was_cut_is_accepted() {
        let long = || "ä".repeat(MAX_EVENT_TEXT_BYTES);
        let failure = || Failure {
            reason: long(),
            causes: vec![long(); 20],
            log_tail: (0..20).map(|line| format!("{line}{}", long())).collect(),
        };
        let disk = |result| DiskErasure { path: long(), serial: Some(long()), result };
        let erased = Erasure::Erased { method: long(), millis: 1, samples: 1 };
        let disks =
            vec![disk(erased), disk(Erasure::Skipped { reason: long() }), disk(Erasure::Skipped { reason: long() })];
        let outcome = Outcome { summary: long(), warnings: vec![long(); 5], disks, ..Outcome::default() };
        let kinds = [
            EventKind::Note(long()),
            EventKind::Retrying(failure()),
            EventKind::Failed(failure()),
            EventKind::TimedOut(failure()),
            EventKind::Succeeded(outcome),
        ];
        for mut kind in kinds {
            let problem_before = problem(&kind).expect("too long");
            assert!(problem_before.contains(" bytes, but at most 8192 are allowed"), "{problem_before}");
            kind.fit();
            assert_eq!(problem(&kind), None);
        }
    }

    #[test]
    fn of_a_failure_the_newest_log_lines_stay() {
        let log_tail: Vec<String> = (0..20).map(|line| format!("{line} {}", "x".repeat(5000))).collect();
        let mut kind = EventKind::Failed(Failure { reason: "no disk".to_owned(), causes: Vec::new(), log_tail });
        let problem = problem(&kind).expect("too much");
        assert!(problem.starts_with("event 7 has 100"), "{problem}");
        kind.fit();
        let EventKind::Failed(failure) = kind else { panic!("{kind:?}") };
        assert_eq!(failure.reason, "no disk");
        assert_eq!(failure.log_tail.len(), 13);
        assert!(failure.log_tail[12].starts_with("19 "));
    }

    #[test]
    fn empty_texts_count() {
        let many = EventKind::Failed(Failure { log_tail: vec![String::new(); 5000], ..Failure::default() });
        problem(&many).expect("too many");
    }
}
