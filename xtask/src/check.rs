//! Checks: tests, layers, long lines, the manual, fuzz targets, power cuts, and the README on a fresh machine.

pub mod columns;
#[cfg(test)]
mod documents;
pub mod fresh;
pub mod fuzz;
pub mod layers;
pub mod manual;
pub mod runner;
pub mod torture;
