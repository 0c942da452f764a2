//! Boot files: made, recorded, served over PXE, and which machine fetched which.

pub mod builds;
mod error;
pub mod fetches;
pub mod folder;
pub mod machine_settings;
pub mod make;
pub mod pxe;
pub mod served;

pub use error::MediaError;
pub use folder::newest;
pub use make::make;
