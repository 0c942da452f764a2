//! The server over real TLS, used like nodes, installed systems and operators use it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod acts;
mod admission;
mod agents;
mod asking;
mod attested;
mod authority;
mod backups;
mod boot_fetches;
mod boot_reports;
mod browser;
mod captures;
mod classes;
mod clocks;
mod command_line;
mod comparing;
mod data_folder;
mod database_check;
mod database_copy;
mod databases;
mod derived_states;
mod disk_hints;
mod enrolment;
#[path = "../../../crates/tpm/tests/judge/log.rs"]
mod event_logs;
mod events;
mod external_steps;
mod files;
mod flags;
mod foreseen;
mod health;
#[path = "../../../crates/media/tests/common/image.rs"]
mod image;
mod images;
mod insides;
mod installing;
mod keys_in_tokens;
mod killed_servers;
mod log_lines;
mod lost_database;
mod lost_postgres;
mod measured_boot;
mod media;
mod media_over_https;
mod metadata;
mod metrics;
mod named;
mod network;
mod no_values;
#[allow(dead_code, reason = "shared with other tests")]
mod object_store;
mod objects;
mod openapi;
mod operator;
mod operators;
mod output;
#[path = "../../../crates/user-data/tests/cloud_init/packages.rs"]
mod packages;
mod page;
mod page_acts;
mod page_in_browser;
mod permissions;
mod phone_home;
mod postgres;
mod power;
mod power_hooks;
mod program;
mod progress;
mod proxies;
mod published;
mod recovery_keys;
mod redfish;
mod replacing;
mod replicas;
mod reporting;
mod retiring;
mod retrying;
mod rolling_upgrade;
mod secrets;
mod secure_boot;
mod selecting;
mod siege;
mod site;
mod softhsm;
mod support;
#[path = "../../../crates/tpm/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
#[expect(dead_code, reason = "shared with other tests")]
mod swtpm;
mod to_replicas;
mod work;
