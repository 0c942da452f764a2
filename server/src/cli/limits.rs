//! `slipway-server limits`: when something counts as trouble.

use clap::{Args, Subcommand};
use slipway_server::operate;
use slipway_server::rules::limits::{self, Change, InForce};
use slipway_server::store::Store;

use super::words::{dash, table};
use super::{print, print_json, print_line};

#[derive(Subcommand)]
pub enum LimitsCommand {
    /// List the limits beyond which the server flags a node.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Change a limit of the site.
    Set(LimitSet),
    /// Give a limit its default again.
    Reset {
        /// Name of the limit, such as stuck.booting.
        #[arg(value_parser = full_name)]
        name: String,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server limits set stuck.booting 30m
  slipway-server limits set looping.boots 10
  slipway-server limits set stuck.step.stream-image 5m --end-after 1h")]
pub struct LimitSet {
    /// Name of the limit, such as stuck.booting.
    #[arg(value_parser = full_name)]
    name: String,
    /// When to flag: a length of time, such as 90s, 30m or 2h, or a number of times.
    value: String,
    /// End the run, as failed, if it goes on for so long. By default no run is ended.
    #[arg(long, value_name = "DURATION")]
    end_after: Option<String>,
}

fn full_name(name: &str) -> Result<String, String> {
    limits::full_name(name).ok_or_else(|| limits::unknown(name).to_string())
}

/// Runs a command about limits.
pub async fn run(store: &Store, command: LimitsCommand) -> anyhow::Result<()> {
    match command {
        LimitsCommand::List { json: true } => print_json(&operate::list_limits(store).await?),
        LimitsCommand::List { json: false } => print(&limit_table(&operate::list_limits(store).await?)),
        LimitsCommand::Set(LimitSet { name, value, end_after }) => {
            let read = |value: String| limits::parse_value(&name, &value).map_err(anyhow::Error::msg);
            let change = Change { flag_after: Some(read(value)?), end_after: end_after.map(read).transpose()? };
            print_line(&sentence(&operate::set_limit(store, &name, change).await?))
        }
        LimitsCommand::Reset { name } => print_line(&sentence(&operate::reset_limit(store, &name).await?)),
    }
}

fn sentence(limit: &InForce) -> String {
    let end = limit.end_after.map(|end| format!(", and ends the run after {}", limits::words(limit.unit, end)));
    format!("{} flags after {}{}", limit.name, limits::words(limit.unit, limit.flag_after), end.unwrap_or_default())
}

fn limit_table(all: &[InForce]) -> String {
    let rows = all.iter().map(|limit| {
        vec![
            limit.name.clone(),
            limits::words(limit.unit, limit.flag_after) + if limit.changed { " (changed)" } else { "" },
            limit.end_after.map_or_else(dash, |end| limits::words(limit.unit, end)),
            limit.what.clone(),
        ]
    });
    table(&["Limit", "Flags after", "Ends the run after", "What is limited"], rows.collect())
}
