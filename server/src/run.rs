//! Composes a run and checks it before its first step, and serves its metadata.

pub mod compose;
pub mod facts;
pub mod foresee;
pub mod go_on;
pub mod metadata;
pub mod new_run;
