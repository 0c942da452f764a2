//! `cargo xtask cache`: lists the build results and downloads in the cache, and removes unused ones.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use slipway_protocol::shared::printable::size;
use xtask::host::cache;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Kind of entry that is never removed, because inputs found by fuzzing cannot be rebuilt.
const NEVER_REMOVED: &str = "fuzz-corpus";

/// List what is cached, or remove what has not been used for a while.
#[derive(Args)]
pub struct Cache {
    /// Remove entries unused for this many days; 0 removes everything but the inputs found by fuzzing.
    #[arg(long, value_name = "DAYS", num_args = 0..=1, default_missing_value = "14")]
    remove_unused: Option<u32>,
}

impl Cache {
    pub fn run(self) -> Result<()> {
        let now = SystemTime::now();
        let (mut kept, mut freed) = (0, 0);
        println!("{:>10}  {:<13} NAME", "SIZE", "LAST USED");
        for entry in cache::entries()? {
            let age = now.duration_since(entry.used).unwrap_or_default();
            let is_unused = self.remove_unused.is_some_and(|days| age >= DAY * days);
            let is_removed = is_unused && !entry.name.starts_with(NEVER_REMOVED) && cache::remove(&entry)?;
            let note = if is_removed { "  removed" } else { "" };
            println!("{:>10}  {:<13} {}{note}", size(entry.size), ago(age), entry.name.display());
            *if is_removed { &mut freed } else { &mut kept } += entry.size;
        }
        println!("{:>10}  in {}", size(kept), cache::root()?.display());
        match self.remove_unused {
            Some(_) => println!("{:>10}  removed", size(freed)),
            None => println!("cargo xtask cache --remove-unused removes what was not used for 14 days"),
        }
        Ok(())
    }
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => "now".to_owned(),
        hours @ 1..48 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}
