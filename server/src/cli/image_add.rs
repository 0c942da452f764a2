//! `image add`.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use slipway_protocol::shared::printable::size;
use slipway_server::base::data::DataDir;
use slipway_server::image::{self, Known, Progress};
use slipway_server::store::Store;

use super::tell;

/// Intervals at which progress is redrawn on a terminal, and printed as a line elsewhere.
const REDRAW_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Adds an image and prints its digest. Progress goes to standard error.
pub async fn run(store: &Store, data: &DataDir, file: &Path, known: Known) -> anyhow::Result<()> {
    let is_terminal = std::io::stderr().is_terminal();
    let every = if is_terminal { REDRAW_EVERY } else { LINE_EVERY };
    let mut shown = Instant::now();
    let added = image::add(store, data, file, known, move |progress| {
        if shown.elapsed() >= every {
            shown = Instant::now();
            tell(&if is_terminal { format!("\r{}\x1B[K", line(progress)) } else { format!("{}\n", line(progress)) });
        }
    })
    .await;
    if is_terminal {
        tell("\r\x1B[K");
    }
    let added = added?;
    for warning in added.warnings {
        tell(&format!("warning: {warning}\n"));
    }
    super::print_line(&added.image.digest.to_string())
}

fn line(Progress { doing, done, total }: Progress) -> String {
    format!("{doing} the image: {} of {}", size(done), size(total.max(done)))
}
