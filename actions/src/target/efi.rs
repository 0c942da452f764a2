//! How firmware starts the installed system: EFI variables, and boot loaders on the EFI system partition.

pub(crate) mod fallback;
pub(crate) mod loader;
pub(crate) mod variables;
