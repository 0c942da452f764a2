//! `slipway-server media write`: runs the program `slipway` to write a stick. The server itself opens no disks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;
use slipway_media::{MANIFEST, Manifest};

use super::BOOT_FOLDER;

#[derive(Args)]
pub struct WriteOptions {
    /// The disk, such as /dev/sdb. Everything on it is lost.
    #[arg(long, value_name = "PATH")]
    disk: PathBuf,
    /// The image of a stick that `media build` made. [default: slipway.img in /var/lib/slipway-boot]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// The program slipway.
    #[arg(long, value_name = "PROGRAM", default_value = "slipway")]
    slipway: PathBuf,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

pub fn run(options: &WriteOptions) -> anyhow::Result<()> {
    let image = options.image.clone().unwrap_or_else(|| Path::new(BOOT_FOLDER).join("slipway.img"));
    // Links to the newest build are followed, so that image and manifest belong together.
    let image = image.canonicalize().with_context(|| {
        format!("looking for the image of a stick {}: make it with `slipway-server media build`", image.display())
    })?;
    let mut slipway = Command::new(&options.slipway);
    slipway.args(["action", "stream-image", "--no-grow", "--verify", "readback", "--url"]).arg(&image);
    slipway.arg("--disk").arg(&options.disk);
    if let Some(digest) = digest(&image)? {
        slipway.args(["--digest", &format!("sha256:{digest}")]);
    }
    if options.yes {
        slipway.arg("--yes");
    }
    match slipway.status() {
        Ok(status) if status.success() => Ok(()),
        // The program has printed the reason.
        Ok(status) => bail!("writing the stick: slipway ended with {status}"),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "writing the stick: there is no program {} to write disks with; install the package slipway, or name the \
             program with --slipway",
            options.slipway.display()
        ),
        Err(error) => Err(error).with_context(|| format!("starting {}", options.slipway.display())),
    }
}

/// Reads the SHA-256 of an image from the manifest beside it. `None` if there is no manifest, or not of this image.
fn digest(image: &Path) -> anyhow::Result<Option<String>> {
    let path = image.with_file_name(MANIFEST);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("reading {}", path.display()))?,
    };
    let manifest: Manifest = serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    let of_image = manifest.assets.into_iter().find(|asset| image.ends_with(&asset.path));
    Ok(of_image.map(|asset| asset.sha256))
}
