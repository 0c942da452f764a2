//! Network boot beside somebody else's DHCP server. PXE firmware asks for an address and for a boot file in the same
//! packet. [`proxy`] answers only the second question (PXE 2.1, section 2.2), and [`tftp`] serves the file. [`dhcp`]
//! has no I/O: it turns the bytes of a request into the bytes of an answer.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

mod counters;
pub mod dhcp;
mod error;
pub mod interface;
pub mod probe;
pub mod proxy;
pub mod tftp;

pub use counters::{Counters, Dropped};
pub use error::Error;
