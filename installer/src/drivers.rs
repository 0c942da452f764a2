//! Which kernel modules a device or the kernel's command line asks for.

pub mod command_line;
pub mod modalias;
pub mod module_tables;
