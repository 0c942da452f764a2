//! Which boot files a machine that must be attested may have started.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use slipway_server::base::data::{DataDir, Place};
use slipway_server::base::time::utc;
use slipway_server::boot_files::builds::{self, KnownBootFiles};
use slipway_server::store::Store;

use crate::cli::words::table;
use crate::cli::{open, print, print_json, print_line};

/// What a machine that must be attested may have started.
#[derive(Clone, Copy, ValueEnum)]
pub enum Started {
    /// Boot files that `media build` made.
    Built,
    /// Anything.
    Any,
}

/// Runs an operation on the database of the data folder.
async fn with_store<T>(place: &Place, run: impl AsyncFnOnce(&Store) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let store = open(&DataDir::open(place)?).await?;
    let done = run(&store).await;
    store.close().await;
    done
}

pub async fn list(place: &Place, json: bool) -> anyhow::Result<()> {
    let known = with_store(place, async |store| Ok(builds::known(store).await?)).await?;
    if json { print_json(&known) } else { print(&text(&known)) }
}

pub async fn forget(place: &Place, id: &str) -> anyhow::Result<()> {
    with_store(place, async |store| Ok(builds::forget(store, id).await?)).await?;
    print_line(&format!("{id} is forgotten"))
}

pub async fn allow(place: &Place, program: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let name = program.display().to_string();
    let digest = with_store(place, async |store| Ok(builds::allow(store, &name, &bytes).await?)).await?;
    print_line(&format!("{name} may start before boot files (Authenticode digest {digest})"))
}

pub async fn require(place: &Place, started: Started) -> anyhow::Result<()> {
    let required = matches!(started, Started::Built);
    with_store(place, async |store| Ok(builds::require(store, required).await?)).await?;
    print_line(rule(required))
}

fn rule(required: bool) -> &'static str {
    match required {
        true => "machines that must be attested are let in only if they started one of the builds in `media list`",
        false => "machines that must be attested are let in no matter what they started",
    }
}

fn text(known: &KnownBootFiles) -> String {
    let mut rows = Vec::new();
    for build in &known.builds {
        let measured = build.measurements.iter().map(|image| (image.arch.name(), &image.program));
        rows.extend(
            measured.map(|(arch, program)| vec![build.id.clone(), arch.to_owned(), utc(build.at), program.clone()]),
        );
        if build.measurements.is_empty() {
            rows.push(vec![build.id.clone(), "-".to_owned(), utc(build.at), "unknown (unsupported stub)".to_owned()]);
        }
    }
    let allowed = known
        .programs
        .iter()
        .map(|program| vec!["allowed".to_owned(), program.name.clone(), utc(program.at), program.digest.clone()]);
    rows.extend(allowed);
    let published = known.published.iter().zip(["published", "published before"]);
    let published = published.map(|(build, word)| format!("{} was {word}, {}\n", build.id, utc(build.at)));
    format!(
        "{}\n{}\n{}",
        table(&["Id", "For", "Since", "Authenticode digest"], rows),
        rule(known.required),
        published.collect::<String>()
    )
}
