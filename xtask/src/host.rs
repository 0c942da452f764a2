//! This machine: its commands, packages, caches and the workspace.

pub mod cache;
pub mod command;
pub mod debian;
pub mod files;
pub mod packages;
pub mod python;
pub mod translation;
pub mod workspace;
