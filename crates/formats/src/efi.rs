//! Variables of UEFI firmware: boot entries (UEFI specification 2.10, 3.1) with their device paths, and lists of the
//! certificates and digests that the firmware trusts or refuses.

pub mod device_path;
pub mod load_option;
pub mod order;
pub mod signature_list;
