//! Types and functions that messages and workflows share.

pub mod digest;
pub mod duration;
pub mod error;
pub mod given;
pub mod identity;
pub mod inventory;
pub mod journal;
pub mod network;
pub mod oci;
pub mod printable;
pub mod secret;
pub mod ssh_key;
