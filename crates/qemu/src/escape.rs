//! Values of QEMU's options.

use std::path::Path;

/// Writes a path for a QEMU option, where commas are doubled.
pub fn commas(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
