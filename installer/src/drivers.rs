//! Finds the kernel modules for a device or for the kernel's command line.

pub mod command_line;
pub mod modalias;
pub mod module_tables;
