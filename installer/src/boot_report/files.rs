//! The reporter's files in the installed system, and their removal.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use slipway_protocol::BootReporterConfig;
use slipway_protocol::node::boot_report::places;
use tracing::{info, warn};

use super::{ReportError, Surroundings};

/// Maximum number of starts in one boot: the service manager must not restart a crashing reporter for ever.
const MAX_STARTS: u32 = 5;
/// Largest configuration, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Returns the configuration that the action wrote, or None if the reporter has been partly removed.
pub fn configuration(surroundings: &Surroundings) -> Result<Option<BootReporterConfig>, ReportError> {
    let possible = || places::FOLDERS.iter().map(|folder| surroundings.root.join(folder).join(places::CONFIG));
    let found = possible().find(|path| path.exists());
    let path = found.or_else(|| possible().next()).unwrap_or_default();
    let read = || -> io::Result<BootReporterConfig> {
        let mut text = String::new();
        File::open(&path)?.take(MAX_CONFIG).read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    match read() {
        Ok(config) => Ok(Some(config)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && surroundings.root.join(places::UNIT).exists() => {
            Ok(None)
        }
        Err(source) => Err(ReportError::Config { path, source }),
    }
}

/// Counts this start, and returns whether the reporter may still run in this boot.
pub fn may_start(surroundings: &Surroundings) -> bool {
    let file = surroundings.state.join("starts");
    let starts = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0u32);
    // Without the folder nothing is counted, and nothing restarts the reporter either.
    if let Err(error) = fs::write(&file, format!("{}\n", starts.saturating_add(1))) {
        info!("writing {}: {error}", file.display());
    }
    starts < MAX_STARTS
}

/// Removes the reporter: the secret first, the program last. What cannot be removed is logged.
pub fn remove(root: &Path) {
    let remove_file = |path: PathBuf| match fs::remove_file(&path) {
        Err(error) if !is_absence(error.kind()) => warn!("removing {}: {error}", path.display()),
        _ => {}
    };
    let folders = || places::FOLDERS.iter().map(|folder| root.join(folder));
    folders().for_each(|folder| remove_file(folder.join(places::CONFIG)));
    places::LINKS.iter().chain([&places::UNIT]).for_each(|place| remove_file(root.join(place)));
    for folder in folders() {
        for name in [places::AGENT, places::FETCH_CURL, places::FETCH_CA, places::FETCH, places::PROGRAM] {
            remove_file(folder.join(name));
        }
        // The folder may contain other files.
        let _ = fs::remove_dir(folder);
    }
}

fn is_absence(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_missing_is_told_from_one_that_cannot_be_read() {
        let root = tempfile::tempdir().expect("a folder");
        let surroundings = Surroundings { root: root.path().to_owned(), ..Surroundings::default() };
        let message = || configuration(&surroundings).expect_err("nothing can be read").to_string();
        assert!(message().contains(": this command is for the unit that the action boot-reporter installs"));
        let path = root.path().join(places::USR_LOCAL).join(places::CONFIG);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, "{").expect("a file");
        assert_eq!(message(), format!("reading {}", path.display()));
    }

    #[test]
    fn a_reporter_that_crashes_is_not_started_for_ever() {
        let state = tempfile::tempdir().expect("a folder");
        let surroundings = Surroundings { state: state.path().to_owned(), ..Surroundings::default() };
        let starts: Vec<bool> = (0..7).map(|_| may_start(&surroundings)).collect();
        assert_eq!(starts, [true, true, true, true, true, false, false]);
    }
}
