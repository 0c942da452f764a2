//! Checks: tests, layers, the manual, fuzz targets, power cuts, and the README on a fresh machine.

#[cfg(test)]
mod documents;
pub mod fresh;
pub mod fuzz;
pub mod layers;
pub mod manual;
pub mod runner;
pub mod torture;
