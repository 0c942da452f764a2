//! The server over real TLS, driven as nodes, installed systems and operators drive it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod captures;
mod command_line;
mod enrolment;
mod files;
mod installing;
mod metadata;
mod openapi;
mod operator;
mod phone_home;
mod reporting;
mod support;
mod work;
