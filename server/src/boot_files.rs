//! Makes boot files, records and publishes the builds, offers boot files over PXE, and records which machine fetched
//! which file.

pub mod builds;
mod error;
pub mod fetches;
pub mod folder;
pub mod follow;
pub mod machine_settings;
pub mod make;
pub mod outdated;
pub mod published;
pub mod pxe;
pub mod served;

pub use error::MediaError;
pub use folder::newest;
pub use make::make;
