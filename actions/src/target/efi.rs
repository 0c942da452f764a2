//! How firmware starts the installed system: its variables, and the loaders on the EFI system partition.

pub(crate) mod fallback;
pub(crate) mod loader;
pub(crate) mod variables;
