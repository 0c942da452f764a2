//! The agent's files in the installed system: its token, and what it verifies the server with.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use slipway_protocol::node::boot_report::places;
use slipway_protocol::{BootReporterConfig, Digest, Secret};

use super::digest;

use crate::boot_report::Surroundings;

/// Largest file with a token, in bytes.
const MAX_TOKEN: u64 = 4096;

/// The folder with the agent's files.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

/// The content of the file with the token.
#[derive(Serialize, Deserialize)]
struct Credentials {
    token: Secret,
    /// The SHA-256 of the run's token, which each installation has for itself.
    of: Digest,
}

impl Files {
    /// Finds the folder: the one that has the configuration.
    pub(super) fn of(surroundings: &Surroundings) -> Self {
        let possible = || places::FOLDERS.iter().map(|folder| surroundings.root.join(folder));
        let found = possible().find(|folder| folder.join(places::CONFIG).exists());
        Self(found.or_else(|| possible().next()).unwrap_or_default())
    }

    /// Path of the program.
    pub(super) fn program(&self) -> PathBuf {
        self.0.join(places::PROGRAM)
    }

    /// Returns the agent's token, if it has one. One of an earlier installation, which came with a captured image, does
    /// not count.
    pub(super) fn token(&self, config: &BootReporterConfig) -> Option<String> {
        let mut text = String::new();
        File::open(self.0.join(places::AGENT)).ok()?.take(MAX_TOKEN).read_to_string(&mut text).ok()?;
        let credentials: Credentials = serde_json::from_str(&text).ok()?;
        let is_its = credentials.of == digest(config.token.reveal()) && !credentials.token.is_empty();
        is_its.then(|| credentials.token.reveal().to_owned())
    }

    /// Stores the agent's token, so that it survives a power cut.
    pub(super) fn save_token(&self, config: &BootReporterConfig, token: &str) -> io::Result<()> {
        let of = digest(config.token.reveal());
        let text = serde_json::to_vec(&Credentials { token: token.to_owned().into(), of })?;
        replace(&self.0.join(places::AGENT), &text)
    }

    /// Stores the configuration.
    pub(super) fn save_config(&self, config: &BootReporterConfig) -> io::Result<()> {
        replace(&self.0.join(places::CONFIG), &serde_json::to_vec(config)?)
    }
}

/// Replaces a file that only root may read. A power cut leaves the old content or the new one.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
