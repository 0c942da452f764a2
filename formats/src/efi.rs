//! Boot entries of UEFI firmware: the load options in its variables (UEFI specification 2.10, 3.1), and their device
//! paths.

pub mod device_path;
pub mod load_option;
pub mod order;
