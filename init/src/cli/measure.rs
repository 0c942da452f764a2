//! `slipway measure`: measures one stage of `stream-image` on its own.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use slipway_actions::{Cancel, Host, HostOptions};
use slipway_protocol::{Algorithm, Digest, DiskHints, Stage, StreamImage};

use super::{Choice, one_of};

#[derive(Args)]
pub struct MeasureArguments {
    /// Stage to measure
    #[arg(value_parser = one_of(STAGES))]
    stage: Stage,
    /// Source: a URL for fetch, otherwise a file, which should be in the page cache
    #[arg(long)]
    url: String,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Digest of the source, such as sha256:HEX, for digest
    #[arg(long)]
    digest: Option<Digest>,
    /// SHA-256 of the source, for digest
    #[arg(long, hide = true, conflicts_with = "digest")]
    sha256: Option<String>,
    /// Disk, for write; its content is lost
    #[arg(long)]
    disk: Option<String>,
    /// Overwrite the disk without asking
    #[arg(long)]
    yes: bool,
}

const STAGES: &[Choice<Stage>] = &[
    ("fetch", Stage::Fetch, "Receiving over the network"),
    ("digest", Stage::Digest, "Computing a digest"),
    ("decode", Stage::Decode, "Decompressing"),
    ("write", Stage::Write, "Writing to a disk"),
];

/// Measures the stage and prints its duration in seconds as JSON.
pub fn run(arguments: MeasureArguments) -> Result<ExitCode> {
    let stage = arguments.stage;
    let sha256 = arguments.sha256.map(|hex| Digest::new(Algorithm::Sha256, &hex)).transpose();
    let digest = arguments.digest.or(sha256.context("reading --sha256")?);
    let trust = arguments.ca.as_ref().map(super::read_file).transpose()?.into_iter().collect();
    let machine = Host::new(HostOptions { trust, cancel: Cancel::default(), ..HostOptions::default() });
    match (stage, &digest, &arguments.disk) {
        (Stage::Digest, None, _) => bail!("measuring a digest: give it with --digest"),
        (Stage::Write, _, None) => bail!("measuring writes: name a disk with --disk; its content will be lost"),
        (Stage::Write, _, Some(disk)) if !arguments.yes => super::action::confirm(&machine, disk, disk)?,
        _ => {}
    }
    let disk = DiskHints { device: arguments.disk, ..DiskHints::default() };
    let image = StreamImage { url: arguments.url, digest, disk, ..StreamImage::default() };
    let seconds = slipway_actions::measure(stage, &image, &machine)?.as_secs_f64();
    super::print(&format!("{}\n", serde_json::json!({ "stage": stage, "seconds": seconds })))?;
    Ok(ExitCode::SUCCESS)
}
