//! The installed system and its files.

use std::io;

/// Why the installed system was not found, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No partition holds what the action works on.
    #[error("looking for {what} on {disk}: {looked_at}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Path of the disk.
        disk: String,
        /// Every place looked at, with what was there.
        looked_at: String,
        /// A partition had no device node, which may yet appear.
        is_transient: bool,
    },
    /// A file of the installed system could not be read or written.
    #[error("{operation} /{path} of the installed system")]
    File {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Path relative to the root of its file system.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The user-data cannot take what was to be put in.
    #[error("putting phone_home into the user-data")]
    UserData {
        /// The cause, with line and column.
        #[source]
        source: slipway_user_data::Refusal,
    },
    /// The Ignition config cannot be used.
    #[error("reading the Ignition config")]
    Ignition {
        /// The cause, with line and column.
        #[source]
        source: slipway_user_data::Refusal,
    },
    /// There is no place for a seed where the installed system would find it.
    #[error("seeding the system on {disk}: {reason}")]
    Seed {
        /// Path of the disk.
        disk: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The installed system cannot have a boot reporter.
    #[error("putting the boot reporter into {partition}: {reason}")]
    BootReporter {
        /// The root file system, in words.
        partition: String,
        /// What stands in the way, and what to do.
        reason: &'static str,
    },
    /// The installed system does not know a user or group.
    #[error("looking up {name:?} in /{file} of the installed system: {reason}; give the number")]
    Owner {
        /// The name given.
        name: String,
        /// Where it was looked up.
        file: &'static str,
        /// Why it was not found.
        reason: &'static str,
    },
    /// An archive is damaged, or has something that is not unpacked.
    #[error("unpacking {place} of the archive: {reason}")]
    Archive {
        /// Which entry, or where.
        place: String,
        /// What is wrong with it.
        reason: String,
        /// It is no archive, or cut off or changed on its way; else it has what is not unpacked.
        is_damaged: bool,
    },
    /// An entry of an archive could not be written.
    #[error("unpacking {entry} of the archive")]
    UnpackEntry {
        /// Its path.
        entry: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process a command was to run in could not be started.
    #[error("starting {what} in the installed system")]
    StartCommand {
        /// What was to run.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The installed system could not be made ready for a command.
    #[error("running {what} in the installed system: {reason}")]
    PrepareCommand {
        /// What was to run.
        what: String,
        /// What was done, and why it failed.
        reason: String,
    },
    /// A command in the installed system did not succeed.
    #[error("running {what} in the installed system: it ended with {how}{}", last_lines(output))]
    Command {
        /// What ran.
        what: String,
        /// Exit status or signal.
        how: String,
        /// The last lines it printed.
        output: Vec<String>,
    },
}

impl TargetError {
    /// Whether the same may succeed if it is tried again.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::NotFound { is_transient: true, .. })
    }
}

fn last_lines(output: &[String]) -> String {
    if output.is_empty() { String::new() } else { format!("; the last it printed: {}", output.join(" / ")) }
}
