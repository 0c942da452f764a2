//! What `slipway-server status` says of the progress of a step.

use slipway_protocol::Progress;
use slipway_protocol::shared::printable::size as bytes;
use slipway_server::rules::progress;

use crate::cli::words::duration;

/// Formats the percentage done and the remaining time.
pub fn in_short(progress: &Progress) -> String {
    let share = progress::of_step(progress).map(|percent| format!("{percent} %"));
    let left = progress.seconds_left.map(|seconds| format!(", {} left", duration(seconds.saturating_mul(1000))));
    share.unwrap_or_else(|| bytes(progress.bytes)) + &left.unwrap_or_default()
}

/// Formats all that is known of it.
pub fn in_words(progress: &Progress) -> String {
    let share = |done: u64, total: Option<u64>| match total.filter(|total| *total > 0) {
        Some(total) => format!("{} % of {}", u128::from(done) * 100 / u128::from(total), bytes(total)),
        None => bytes(done),
    };
    let mut text = share(progress.bytes, progress.total);
    // Both are zero or unset if nothing is transferred over a network.
    if progress.fetched > 0 || progress.fetch_total.is_some() {
        text += &format!(", transferred {}", share(progress.fetched, progress.fetch_total));
    }
    if progress.rate > 0 {
        text += &format!(", {}/s", bytes(progress.rate));
    }
    if let Some(seconds) = progress.seconds_left {
        text += &format!(", {} left", duration(seconds.saturating_mul(1000)));
    }
    if let Some(stage) = &progress.waiting_for {
        text += &format!(", waiting for {}", stage.in_words());
    }
    text
}
