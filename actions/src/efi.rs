//! What UEFI firmware starts from: load options in its variables (UEFI specification 2.10, 3.1), and loaders on the EFI system
//! partition.

pub(crate) mod device_path;
pub(crate) mod fallback;
pub(crate) mod former;
pub(crate) mod load_option;
pub(crate) mod loader;
pub(crate) mod order;
pub(crate) mod variables;
