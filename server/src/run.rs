//! A run before its first step, and what the machine is told of it.

pub mod compose;
pub mod facts;
pub mod foresee;
pub mod metadata;
pub mod new_run;
