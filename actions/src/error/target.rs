//! Errors of the installed system and its files.

use std::io;

/// Why the installed system could not be found, read or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TargetError {
    /// No partition has what the action works on.
    #[error("looking for {what} on {disk}: {looked_at}")]
    NotFound {
        what: &'static str,
        disk: String,
        /// Every place that was searched, with what was found there.
        looked_at: String,
        /// Whether a partition had no device node, which may yet appear.
        is_transient: bool,
    },
    /// A file of the installed system could not be read or written.
    #[error("{operation} /{path} of the installed system")]
    File {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Path relative to the root of its file system.
        path: String,
        source: io::Error,
    },
    /// The system would not understand an input of the seed.
    #[error("reading the {input}")]
    SeedInput {
        /// The input: "user-data", "vendor-data", "network configuration" or "Ignition config".
        input: &'static str,
        /// The cause, with line and column.
        source: slipway_user_data::Refusal,
    },
    /// The boot reporter cannot be added to the Ignition config.
    #[error("adding the boot reporter to the Ignition config /{path} in {partition}")]
    ReporterInIgnition {
        path: String,
        partition: String,
        /// The cause, with line and column.
        source: slipway_user_data::Refusal,
    },
    /// There is no place for a seed where the installed system would find it.
    #[error("seeding the system on {disk}: {reason}")]
    Seed {
        disk: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The boot reporter cannot be installed in this system.
    #[error("installing the boot reporter in {partition}: {reason}")]
    BootReporter {
        /// The root file system, in words.
        partition: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The installed system has no such user or group.
    #[error("looking up {name:?} in /{file} of the installed system: {reason}; give the numeric id")]
    Owner { name: String, file: &'static str, reason: &'static str },
    /// An archive is damaged, or has an entry of a kind that is not unpacked.
    #[error("unpacking {place} of the archive: {reason}")]
    Archive {
        /// Which entry, or which place in the archive.
        place: String,
        reason: String,
        /// Whether the file is no archive, is truncated or was changed in transit. False if it is too large or has a
        /// refused entry.
        is_damaged: bool,
    },
    /// An entry of an archive could not be written.
    #[error("unpacking {entry} of the archive")]
    UnpackEntry { entry: String, source: io::Error },
    /// The process for a command could not be started.
    #[error("starting {what} in the installed system")]
    StartCommand { what: String, source: io::Error },
    /// The installed system could not be prepared for a command.
    #[error("running {what} in the installed system: {reason}")]
    PrepareCommand {
        what: String,
        /// The preparation that failed, and why.
        reason: String,
    },
    /// A command in the installed system failed.
    #[error("running {what} in the installed system: it ended with {how}{}", last_lines(output))]
    Command { what: String, how: String, output: Vec<String> },
}

impl TargetError {
    /// Whether another try may succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::NotFound { is_transient: true, .. })
    }
}

fn last_lines(output: &[String]) -> String {
    if output.is_empty() { String::new() } else { format!("; last output: {}", output.join(" / ")) }
}
