//! `slipway-server operator`.

use clap::Subcommand;
use slipway_server::base::data::DataDir;
use slipway_server::base::time::{Millis, now, utc};
use slipway_server::operate::{self, FIRST, OperatorStatus};
use slipway_server::store::Store;

use super::words::{dash, table};
use super::{parse_duration, print, print_json, print_line};

#[derive(Subcommand)]
pub enum OperatorCommand {
    /// Add an operator of the HTTPS API and print its token, which cannot be printed again.
    #[command(after_help = "\
Examples:
  slipway-server operator add alice
  slipway-server operator add ci --expires 30d")]
    Add {
        /// Name, which appears in the log.
        name: String,
        /// How long the token is valid, such as 90s, 30m, 1h or 30d; by default until it is rotated or removed.
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        expires: Option<u64>,
    },
    /// List the operators, without their tokens.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Remove an operator. Its token is refused from now on.
    Remove {
        /// Name of the operator.
        name: String,
    },
    /// Make a new token for an operator, valid for as long as the old one was, and print it.
    #[command(after_help = "\
Examples:
  slipway-server operator rotate
  slipway-server operator rotate alice --keep 1h")]
    Rotate {
        /// Name of the operator.
        #[arg(default_value = FIRST)]
        name: String,
        /// How long the old token continues to work, such as 90s, 30m, 1h or 7d; by default it ends immediately.
        #[arg(
            long,
            value_name = "DURATION",
            value_parser = parse_duration,
            default_value = "0s",
            hide_default_value = true
        )]
        keep: u64,
    },
}

/// Runs a command about operators.
pub async fn run(store: &Store, data: &DataDir, command: OperatorCommand) -> anyhow::Result<()> {
    // The data folder may be from a version that had the first token only in its file.
    operate::adopt_first(store, data).await?;
    match command {
        OperatorCommand::Add { name, expires } => {
            print_line(&operate::add_operator(store, data, &name, expires).await?.token)
        }
        OperatorCommand::List { json: true } => print_json(&operate::list_operators(store).await?),
        OperatorCommand::List { json: false } => print(&operator_table(&operate::list_operators(store).await?, now())),
        OperatorCommand::Remove { name } => {
            operate::remove_operator(store, data, &name).await?;
            print_line(&format!("operator {name} is removed"))
        }
        OperatorCommand::Rotate { name, keep } => {
            print_line(&operate::rotate_operator(store, data, &name, keep).await?.token)
        }
    }
}

fn operator_table(operators: &[OperatorStatus], now: Millis) -> String {
    let rows = operators.iter().map(|operator| {
        let expires = operator.expires_at.map_or_else(dash, |at| match at <= now {
            true => format!("{} (expired)", utc(at)),
            false => utc(at),
        });
        // The last use is recorded to the day.
        let used = operator.used_at.map_or_else(dash, |at| utc(at).chars().take("2026-01-31".len()).collect());
        let old = operator.old_until.map_or_else(dash, utc);
        vec![operator.name.clone(), utc(operator.created_at), expires, used, old]
    });
    table(&["Name", "Token made", "Expires", "Last used", "Old token until"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_which_tokens_are_still_good() {
        let operator = |expires_at, used_at, old_until| OperatorStatus {
            name: "alice".to_owned(),
            created_at: 0,
            expires_at,
            used_at,
            old_until,
        };
        let operators =
            [operator(None, None, None), operator(Some(60_000), Some(0), None), operator(None, None, Some(90_000))];
        let text = operator_table(&operators, 60_000);
        let made = "alice  1970-01-01 00:00:00 UTC";
        let rows = [
            format!("{made}  -                                  -           -"),
            format!("{made}  1970-01-01 00:01:00 UTC (expired)  1970-01-01  -"),
            format!("{made}  -                                  -           1970-01-01 00:01:30 UTC"),
        ];
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), rows, "{text}");
    }
}
