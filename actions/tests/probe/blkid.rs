//! The blkid program.

use std::path::Path;
use std::process::Command;

/// A file system as `probe` or blkid finds it.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub kind: String,
    pub uuid: Option<String>,
    pub label: Option<String>,
}

/// blkid's exit status if it found several file systems.
const AMBIVALENT: i32 = 8;

pub fn probe(path: &Path) -> Option<Found> {
    let output = Command::new("blkid").args(["-p", "-d", "-o", "export"]).arg(path).output().unwrap();
    if output.status.code() == Some(AMBIVALENT) {
        return Some(Found { kind: "ambivalent".to_owned(), uuid: None, label: None });
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    Some(Found { kind: value("TYPE=")?, uuid: value("UUID="), label: value("LABEL=") })
}
