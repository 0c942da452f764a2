//! What boot loaders start an installed system by: pure readers of their configuration. They change nothing; that is
//! `boot_config`.

pub(crate) mod version;
