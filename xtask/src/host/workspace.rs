//! Paths of the repository and of the folders that a package is built from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::host::command::{command, stdout};

/// Returns the root of the repository, found from the package that cargo runs, or else from the current directory. The
/// path at which this program was compiled is not used, because it may be in another clone.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).or_else(|| std::env::current_dir().ok());
    let here = here.unwrap_or_default();
    here.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).unwrap_or(&here).to_owned()
}

/// The cargo that runs us, or the one in `PATH`.
pub fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Deserialize)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

impl Package {
    /// Returns the folder that contains the package's manifest.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new(""))
    }

    /// Returns the names of the packages that this package is built from, without those that only its tests use.
    pub fn built_from(&self) -> impl Iterator<Item = &str> {
        let built = self.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        built.map(|dependency| dependency.name.as_str())
    }
}

/// Lists the packages of the workspace.
pub fn packages() -> Result<Vec<Package>> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let text = stdout(command(cargo(), arguments).current_dir(root()))?;
    let metadata: Metadata = serde_json::from_str(&text).context("reading the output of cargo metadata")?;
    Ok(metadata.packages)
}

/// Returns the folders of a package and of all workspace packages it depends on, sorted.
pub fn folders_of(package: &str) -> Result<Vec<PathBuf>> {
    let packages = packages()?;
    let (mut folders, mut names) = (BTreeSet::new(), vec![package.to_owned()]);
    while let Some(name) = names.pop() {
        let Some(package) = packages.iter().find(|package| package.name == name) else { continue };
        if folders.insert(package.folder().to_owned()) {
            names.extend(package.built_from().map(String::from));
        }
    }
    Ok(folders.into_iter().collect())
}

/// Returns the date of a build in seconds since 1970: `SOURCE_DATE_EPOCH` if set
/// (<https://reproducible-builds.org/specs/source-date-epoch/>), else the last commit that changed these paths.
pub fn source_date(paths: &[PathBuf]) -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().with_context(|| format!("reading SOURCE_DATE_EPOCH {text:?}"));
    }
    let mut git = command("git", ["log", "-1", "--format=%ct", "--"]);
    let commit = stdout(git.args(paths).current_dir(root()));
    // A source archive has no git history. Its files are newer than this date.
    const ANY_RELEASE: u64 = 1_767_225_600; // 2026-01-01
    Ok(commit.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(ANY_RELEASE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_built_from_its_own_folder_and_the_crates_below_it() -> Result<()> {
        let folders = folders_of("slipway")?;
        let names: Vec<_> = folders.iter().filter_map(|folder| folder.file_name()?.to_str()).collect();
        assert!(names.contains(&"init"), "{names:?}");
        assert!(!names.contains(&"server") && !names.contains(&"xtask"), "{names:?}");
        Ok(())
    }
}
