//! The image that `bench stream` writes, in every format.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::build::server::Profile;
use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::lab::target_image::{self, System};

/// The image that the benchmark writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A Debian of 3 GiB with 1.3 GiB of data. Gives meaningful figures.
    Large,
    /// The Debian of 1 GiB that the demo installs, which exists anyway. Shows that the benchmark works.
    Small,
}

impl Image {
    /// How the server that hands out the image is compiled.
    pub fn server(self) -> Profile {
        if self == Self::Large { Profile::Release } else { Profile::Dev }
    }

    /// Returns the path of the raw image, built or from the cache.
    fn raw(self) -> Result<PathBuf> {
        if self == Self::Large {
            return target_image::build_large();
        }
        let image = target_image::build(System::SystemdBoot)?;
        let key = Key::new("small-image-1").with("sha256", &image.sha256);
        let folder = cache::keyed("small-image", key, |folder| image.unpack(&folder.join("image.raw")))?;
        Ok(folder.join("image.raw"))
    }
}

/// A format in which the image is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Name in tables.
    pub name: &'static str,
    /// File name extension, by which other tools recognise the format.
    pub extension: &'static str,
    /// Compresses standard input to standard output. Empty for a raw image.
    compressor: &'static [&'static str],
    /// Shell command that decompresses standard input.
    pub decoder: &'static str,
}

/// The formats of `bench stream`. xz uses threads because otherwise it would write a single block.
pub const FORMATS: [Format; 5] = [
    Format { name: "raw", extension: "raw", compressor: &[], decoder: "cat" },
    Format { name: "gzip", extension: "raw.gz", compressor: &["gzip", "-6"], decoder: "gzip -dc" },
    Format { name: "xz", extension: "raw.xz", compressor: &["xz", "-6", "-T2"], decoder: "xz -dc -T2" },
    Format { name: "zstd-3", extension: "3.raw.zst", compressor: &["zstd", "-q", "-3"], decoder: "zstd -dcq" },
    Format {
        name: "zstd-19",
        extension: "19.raw.zst",
        compressor: &["zstd", "-q", "-19", "-T2"],
        decoder: "zstd -dcq",
    },
];

/// An image in one format.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Format of the stream.
    pub format: Format,
    /// The file, named `image.` and the extension.
    pub path: PathBuf,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

impl Stream {
    /// Name of the file.
    pub fn name(&self) -> String {
        format!("image.{}", self.format.extension)
    }
}

/// Makes the raw image, then the image in each of the formats `names` (all if empty), or finds them in the cache.
/// Building takes minutes for each.
pub fn build(image: Image, names: &[String]) -> Result<Vec<Stream>> {
    let raw = image.raw()?;
    let wanted = |format: &&Format| is_wanted(names, format) || format.compressor.is_empty();
    FORMATS.iter().filter(wanted).map(|format| stream(&raw, *format)).collect()
}

/// Whether the format is among these names. An empty list means all.
pub fn is_wanted(names: &[String], format: &Format) -> bool {
    names.is_empty() || names.iter().any(|name| name == format.name)
}

fn stream(raw: &Path, format: Format) -> Result<Stream> {
    let image = raw.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
    let key = Key::new("large-stream-1").with("image", image.as_encoded_bytes()).with("name", format.name);
    let key = key.with("compressor", format.compressor.join(" "));
    let folder = cache::keyed("large-stream", key, |folder| {
        let path = folder.join(format!("image.{}", format.extension));
        let Some((program, arguments)) = format.compressor.split_first() else {
            return std::os::unix::fs::symlink(raw, &path).with_context(|| format!("linking {}", path.display()));
        };
        eprintln!("compressing the image: {}", format.name);
        let input = File::open(raw).with_context(|| format!("opening {}", raw.display()))?;
        let output = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let status = command(program, arguments).stdin(input).stdout(output).status();
        let status = status.with_context(|| format!("starting {program}"))?;
        anyhow::ensure!(status.success(), "running {program}: {status}");
        run_quietly(command("sync", ["--file-system"]).arg(&path))
    })?;
    let path = folder.join(format!("image.{}", format.extension));
    let sum = stdout(command("sha256sum", ["--binary"]).arg(&path))?;
    Ok(Stream { format, path, sha256: sum.split_whitespace().next().unwrap_or_default().to_owned() })
}
