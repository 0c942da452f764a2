//! How an action by hand tells what it does.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use slipway_actions::Report;
use slipway_protocol::Progress;

use crate::cli;

/// How often a plain line tells the progress.
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
        let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {msg}");
        Self::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    pub(super) fn report(&mut self, report: &Report) {
        match (self, report) {
            (Self::Json, Report::Note(text)) => print_json(&serde_json::json!({ "note": text })),
            (Self::Json, Report::Progress(progress)) => print_json(&serde_json::json!({ "progress": progress })),
            (Self::Bar(bar), Report::Note(text)) => bar.suspend(|| cli::tell(text)),
            (Self::Bar(bar), Report::Progress(progress)) => {
                if let Some(total) = progress.total {
                    bar.set_length(total);
                }
                bar.set_position(progress.bytes);
                bar.set_message(rate(progress));
            }
            (Self::Lines { .. }, Report::Note(text)) => cli::tell(text),
            (Self::Lines { next }, Report::Progress(progress)) => {
                if Instant::now() >= *next {
                    *next = Instant::now() + LINE_EVERY;
                    let total = progress.total.map_or("?".to_owned(), |total| HumanBytes(total).to_string());
                    cli::tell(&format!("{} of {total} {}", HumanBytes(progress.bytes), rate(progress)));
                }
            }
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn rate(progress: &Progress) -> String {
    let mut text = format!("at {}/s", HumanBytes(progress.rate));
    if let Some(left) = progress.total.and_then(|total| total.checked_sub(progress.bytes))
        && let Some(seconds) = left.checked_div(progress.rate)
    {
        text.push_str(&format!(", {} left", HumanDuration(Duration::from_secs(seconds))));
    }
    if let Some(stage) = progress.waiting_for {
        text.push_str(&format!(", waiting for {stage:?}").to_lowercase());
    }
    text
}

pub(super) fn print_json(value: &serde_json::Value) {
    // As with lines for people: a reader that goes away does not stop the action.
    let _ = cli::print(&format!("{value}\n"));
}
