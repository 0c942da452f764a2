//! What boot loaders start an installed system by: pure readers of their configuration. They change nothing; that is
//! `boot_config`.

pub mod bls;
pub mod extlinux;
pub mod grub;
pub mod version;

/// A kernel with what it is started with. Paths begin at the root of a file system, without a slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootEntry {
    /// What a menu calls it.
    pub title: String,
    /// Path of the kernel.
    pub kernel: String,
    /// In the order in which they are unpacked.
    pub initrds: Vec<String>,
    /// The kernel command line.
    pub cmdline: String,
    /// UUID of the file system, where the entry says so.
    pub file_system: Option<String>,
}

/// A path as boot loaders write it: on a device of theirs, absolute, with slashes of either kind.
fn plain_path(path: &str) -> String {
    let path = path.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(path, |(_, path)| path);
    path.replace('\\', "/").trim_start_matches('/').to_owned()
}
