//! The installed system: its file systems and their contents, and how firmware and boot loaders start it.

pub(crate) mod config_drive;
pub(crate) mod efi;
mod find;
pub(crate) mod grow;
pub(crate) mod layout;
pub(crate) mod mount;
pub(crate) mod os_release;
pub(crate) mod ostree;
pub(crate) mod roles;
pub(crate) mod root;
pub(crate) mod sealed;
pub(crate) mod verity;
pub(crate) mod volume;
pub(crate) mod volumes;

pub(crate) use find::{Target, find, find_root};
