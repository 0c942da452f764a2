//! `image add`.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use slipway_protocol::shared::printable::size;
use slipway_server::base::data::DataDir;
use slipway_server::image::{self, Known, Progress, Remote};
use slipway_server::store::Store;

use super::tell;

/// Intervals at which progress is redrawn on a terminal, and printed as a line elsewhere.
const REDRAW_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Adds an image and prints its digest. Progress goes to standard error.
pub async fn run(store: &Store, data: &DataDir, file: &Path, ca: Option<&Path>, known: Known) -> anyhow::Result<()> {
    let remote = remote(file, ca, &known)?;
    let is_terminal = std::io::stderr().is_terminal();
    let every = if is_terminal { REDRAW_EVERY } else { LINE_EVERY };
    let mut shown = Instant::now();
    let progress = move |progress| {
        if shown.elapsed() >= every {
            shown = Instant::now();
            tell(&if is_terminal { format!("\r{}\x1B[K", line(progress)) } else { format!("{}\n", line(progress)) });
        }
    };
    let added = match remote {
        Some(remote) => image::add_remote(store, data, &remote, known, progress).await,
        None => image::add(store, data, file, known, progress).await,
    };
    if is_terminal {
        tell("\r\x1B[K");
    }
    let added = added?;
    for warning in added.warnings {
        tell(&format!("warning: {warning}\n"));
    }
    super::print_line(&added.image.digest.to_string())
}

/// The server that an image is fetched from, if the operator gave a URL.
fn remote(file: &Path, ca: Option<&Path>, known: &Known) -> anyhow::Result<Option<Remote>> {
    let url = file.to_str().filter(|file| file.starts_with("https://") || file.starts_with("http://"));
    let Some(url) = url else {
        ensure!(ca.is_none(), "--ca is for the server of a URL, but {file:?} is a file");
        return Ok(None);
    };
    let Some(digest) = known.digest.clone() else {
        bail!("give the SHA-256 of the file with --sha256, so that it is certain what arrives from the URL");
    };
    let ca = ca.map(super::read).transpose()?;
    Ok(Some(Remote::new(url, digest, ca.as_deref())?))
}

fn line(Progress { doing, done, total }: Progress) -> String {
    format!("{doing} the image: {} of {}", size(done), size(total.max(done)))
}
