//! Boot files: made, recorded, served over PXE, and which machine fetched which.

pub mod builds;
pub mod fetches;
pub mod make;
pub mod pxe;
pub mod served;

pub use make::{make, newest};
