//! What UEFI firmware starts from: load options in its variables (UEFI specification 2.10, 3.1) and the device paths in them.

pub mod device_path;
pub mod load_option;
pub mod order;
