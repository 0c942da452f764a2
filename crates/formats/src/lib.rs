//! Readers and editors for foreign formats: boot configurations, fstab, PE, EFI load options, lists of sums,
//! signatures, block maps, and images by their first bytes. They take bytes or text and return a result or a text. They
//! do no input or output.
#![deny(clippy::indexing_slicing, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests"))]

pub mod architecture;
pub mod bmap;
pub mod boot_config;
pub mod boot_entry;
pub mod crc32;
pub mod efi;
pub mod escapes;
pub mod fat;
pub mod fstab;
pub mod gzip;
pub mod http;
pub mod image;
pub mod oci;
pub mod partition_table;
pub mod pe;
pub mod qcow2;
pub mod roles;
pub mod signature;
pub mod sums;
pub mod zstd;
