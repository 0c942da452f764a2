//! Why boot files cannot be made, read or given settings.

use std::io;
use std::path::PathBuf;

use slipway_media::BuildError;
use slipway_parts::PartsError;
use slipway_protocol::SettingError;

use crate::base::error::Error;

/// Why there are no boot files.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MediaError {
    /// There are no parts for the wanted kernel and architecture.
    #[error(
        "looking for the parts of the boot image: there are none for {wanted} in {}; \
         install the package slipway-parts, or name their folder with --parts", folder.display()
    )]
    NoParts { wanted: String, folder: PathBuf },
    /// Something of the site cannot be used: its data folder, its keys or its database.
    #[error(transparent)]
    Site(#[from] Error),
    /// Parts cannot be used.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// The files cannot be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The folder of boot files has something else where a link belongs.
    #[error(
        "naming the new boot files: {} is not a link from an earlier build; move it away, then try again",
        path.display()
    )]
    InTheWay { path: PathBuf },
    /// A file of a build is not the one that its manifest names.
    #[error("checking {}: it was changed since it was made; make the boot files again", path.display())]
    Changed { path: PathBuf },
    /// The file has no place for the settings of a machine.
    #[error(
        "writing the settings of a machine to {}: it was not made by `slipway-server media build`, or is truncated",
        path.display()
    )]
    NoPlace { path: PathBuf },
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// A file or folder cannot be read or written.
    #[error("{doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}
