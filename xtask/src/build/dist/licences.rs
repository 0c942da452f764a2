//! Collects the licence texts of everything in a release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use slipway_parts::Component;

use crate::host::command::{command, stdout};
use crate::host::debian::{self, Package};
use crate::host::{files, packages, workspace};

/// Lower-case prefixes of the names of licence files.
const NAMES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
}

#[derive(Deserialize)]
struct Crate {
    name: String,
    version: String,
    manifest_path: PathBuf,
}

/// Collects the licence texts of crates. Each text appears once, below the names of the crates that contain it.
pub fn of_crates(components: &[Component]) -> Result<String> {
    let metadata = command(workspace::cargo(), ["metadata", "--locked", "--format-version", "1"]);
    let metadata = stdout({ metadata }.current_dir(workspace::root()))?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("reading the output of cargo metadata")?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Crate { name, version, manifest_path } in metadata.packages {
        if !components.iter().any(|component| component.name == name && component.version == version) {
            continue;
        }
        for path in texts_in(manifest_path.parent().unwrap_or(Path::new("/")))? {
            let text = String::from_utf8_lossy(&files::read(&path)?).trim().replace('\r', "");
            texts.entry(text).or_default().insert(format!("{name} {version}"));
        }
    }
    let line = "-".repeat(80);
    let one = |(text, crates): (String, BTreeSet<String>)| {
        format!("{}:\n\n{text}\n\n{line}\n\n", crates.into_iter().collect::<Vec<_>>().join(", "))
    };
    Ok(texts.into_iter().map(one).collect())
}

fn texts_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = files::children(folder)?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        path.is_file() && NAMES.iter().any(|start| name.starts_with(start))
    });
    Ok(paths)
}

/// Reads the `copyright` file of each Debian package that the parts contain. The result's keys are package names.
/// `kernels` are the root folders of unpacked kernels.
pub fn of_debian(components: &[Component], kernels: &[PathBuf]) -> Result<BTreeMap<String, Vec<u8>>> {
    let firmware = firmware_packages()?;
    let suite = debian::sources()?.suite;
    let of_debian = components.iter().filter(|component| component.supplier == "Debian");
    let names: BTreeSet<&str> = of_debian.map(|component| component.name.as_str()).collect();
    let mut texts = BTreeMap::new();
    for name in names.into_iter().chain(firmware.iter().map(String::as_str)) {
        let below = Path::new("usr/share/doc").join(name).join("copyright");
        let unpacked = kernels.iter().map(|root| root.join(&below)).find(|path| path.exists());
        let path = match unpacked {
            Some(path) => path,
            None if firmware.contains(name) => {
                debian::unpacked(&Package { name, suite: &suite, component: "non-free-firmware" })?.join(&below)
            }
            None => {
                packages::ensure(&[name])?;
                Path::new("/").join(&below)
            }
        };
        texts.insert(name.to_owned(), files::read(&path)?);
    }
    Ok(texts)
}

/// Returns the packages from which `initramfs/firmware.txt` takes files.
fn firmware_packages() -> Result<BTreeSet<String>> {
    let list = files::read(&workspace::root().join("initramfs/firmware.txt"))?;
    let list = String::from_utf8(list).context("reading firmware.txt")?;
    let lines = list.lines().filter(|line| !line.trim_start().starts_with('#'));
    let sources = lines.filter_map(|line| line.split_whitespace().nth(1));
    Ok(sources.filter(|source| source.starts_with("firmware-")).map(str::to_owned).collect())
}
