//! Shows the progress of an action that is run by hand.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use slipway_actions::Report;
use slipway_protocol::Progress;
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::size;

use crate::cli;

/// Interval between plain lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How reports are shown.
pub(super) enum Display {
    Json,
    Bar(ProgressBar),
    Lines { next: Instant },
}

impl Display {
    pub(super) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !cli::log::has_audience() {
            return Self::Lines { next: Instant::now() };
        }
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{wide_bar} {prefix}\n{wide_msg}");
        Self::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    pub(super) fn report(&mut self, report: &Report) {
        match (self, report) {
            (Self::Json, Report::Note(text)) => print_json(&serde_json::json!({ "note": text })),
            (Self::Json, Report::Progress(progress)) => print_json(&serde_json::json!({ "progress": progress })),
            (Self::Bar(bar), Report::Note(text)) => bar.suspend(|| cli::print_stderr(text)),
            (Self::Bar(bar), Report::Progress(progress)) => {
                if let Some((done, total)) = fraction(progress) {
                    bar.set_length(total);
                    bar.set_position(done);
                }
                bar.set_prefix(speed(progress));
                bar.set_message(amounts(progress));
            }
            (Self::Lines { .. }, Report::Note(text)) => cli::print_stderr(text),
            (Self::Lines { next }, Report::Progress(progress)) => {
                if Instant::now() >= *next {
                    *next = Instant::now() + LINE_EVERY;
                    cli::print_stderr(&format!("{}, {}", amounts(progress), speed(progress)));
                }
            }
        }
    }

    /// Removes the progress bar from the terminal.
    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Returns bytes done and total bytes, of the disk or else of the download. `None` if neither total is known.
fn fraction(progress: &Progress) -> Option<(u64, u64)> {
    let by_bytes = progress.total.map(|total| (progress.bytes, total));
    by_bytes.or(progress.fetch_total.map(|total| (progress.fetched, total)))
}

fn amounts(progress: &Progress) -> String {
    let bytes = |done: u64, total: Option<u64>| match total {
        Some(total) => format!("{} of {}", size(done), size(total)),
        None => size(done),
    };
    let done = bytes(progress.bytes, progress.total);
    // The source is local, so nothing was transferred.
    if progress.fetched == 0 && progress.fetch_total.is_none() {
        return done;
    }
    format!("{done}, transferred {}", bytes(progress.fetched, progress.fetch_total))
}

fn speed(progress: &Progress) -> String {
    let mut text = format!("{}/s", size(progress.rate));
    if let Some(seconds) = progress.seconds_left {
        text.push_str(&format!(", {} left", duration::words(Duration::from_secs(seconds))));
    }
    if let Some(stage) = progress.waiting_for {
        text.push_str(&format!(", waiting for {}", stage.in_words()));
    }
    text
}

pub(super) fn print_json(value: &serde_json::Value) {
    // As with plain lines, a reader that goes away does not stop the action.
    let _ = cli::print_json(&value.to_string());
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Stage;

    use super::*;

    #[test]
    fn progress_is_told_as_far_as_it_is_known() {
        let check = |progress: &Progress, expect: (Option<(u64, u64)>, &str, &str)| {
            let (amounts, speed) = (amounts(progress), speed(progress));
            assert_eq!((fraction(progress), amounts.as_str(), speed.as_str()), expect);
        };
        let mut progress = Progress { bytes: 3 << 20, rate: 1 << 20, ..Progress::default() };
        check(&progress, (None, "3 MiB", "1 MiB/s"));
        (progress.fetched, progress.waiting_for) = (1 << 20, Some(Stage::Fetch));
        check(&progress, (None, "3 MiB, transferred 1 MiB", "1 MiB/s, waiting for the download"));
        (progress.fetch_total, progress.seconds_left) = (Some(4 << 20), Some(90));
        let (amounts, speed) =
            ("3 MiB, transferred 1 MiB of 4 MiB", "1 MiB/s, 1 min 30 s left, waiting for the download");
        check(&progress, (Some((1 << 20, 4 << 20)), amounts, speed));
        progress.total = Some(12 << 20);
        let amounts = "3 MiB of 12 MiB, transferred 1 MiB of 4 MiB";
        check(&progress, (Some((3 << 20, 12 << 20)), amounts, speed));
    }
}
