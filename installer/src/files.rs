//! Writes small files that other processes read.

use std::io::{self, Write};
use std::path::Path;

/// Replaces a file atomically, so that a reader sees either the old text or the new one. Creates the folder. The mode
/// is 0600.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}
