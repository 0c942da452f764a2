//! Texts for messages.

pub(crate) use slipway_protocol::shared::printable::{size, two_sizes};

/// Returns an error with its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    slipway_protocol::Failure::of(error).in_one_line()
}

/// A folder with these files, for tests.
#[cfg(test)]
pub(crate) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder
}
