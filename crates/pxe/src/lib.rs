//! Network boot beside a DHCP server that belongs to somebody else. Firmware that boots by PXE asks two questions with one
//! packet: for an address, and for a boot file. [`proxy`] answers the second and never the first (PXE 2.1, section 2.2),
//! and [`tftp`] serves the file. [`dhcp`] is the pure part: the bytes of a request in, those of an answer out.

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
