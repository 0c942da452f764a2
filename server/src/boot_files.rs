//! Boot files: made, recorded, served over PXE, and which machine fetched which.

pub mod fetches;
pub mod make;
pub mod pxe;

pub use make::{make, newest};
