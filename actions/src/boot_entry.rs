//! What boot loaders start an installed system by: pure readers of their configuration. They change nothing; that is
//! `boot_config`.

pub(crate) mod bls;
pub(crate) mod extlinux;
pub(crate) mod grub;
pub(crate) mod version;

/// A kernel with what it is started with. Paths begin at the root of a file system, without a slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BootEntry {
    /// What a menu calls it.
    pub(crate) title: String,
    pub(crate) kernel: String,
    /// In the order in which they are unpacked.
    pub(crate) initrds: Vec<String>,
    pub(crate) cmdline: String,
    /// UUID of the file system, where the entry says so.
    pub(crate) file_system: Option<String>,
}

/// A path as boot loaders write it: on a device of theirs, absolute, with slashes of either kind.
fn plain_path(path: &str) -> String {
    let path = path.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(path, |(_, path)| path);
    path.replace('\\', "/").trim_start_matches('/').to_owned()
}
