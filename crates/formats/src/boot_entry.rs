//! Readers for the configuration of boot loaders: which kernel an installed system starts. `boot_config` has the
//! editors.

pub mod bls;
pub mod extlinux;
pub mod grub;
pub mod version;

/// A kernel and its parameters. Paths are relative to the root of a file system, without a leading slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootEntry {
    /// Title in the menu.
    pub title: String,
    /// Path of the kernel.
    pub kernel: String,
    /// Initrds, in the order in which they are unpacked.
    pub initrds: Vec<String>,
    /// The kernel command line.
    pub cmdline: String,
    /// UUID of the file system, if the entry names it.
    pub file_system: Option<String>,
}

/// Normalises a path of a boot loader, which may have a device, a leading slash, and slashes of either kind.
fn plain_path(path: &str) -> String {
    let path = path.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(path, |(_, path)| path);
    path.replace('\\', "/").trim_start_matches('/').to_owned()
}
