//! `slipway-server token`.

use std::collections::HashMap;

use clap::Subcommand;
use slipway_server::base::time::{Millis, now, utc};
use slipway_server::operate::{self, TokenStatus};
use slipway_server::store::run_tokens::Purpose;
use slipway_server::store::{Store, nodes};

use super::words::{dash, table};
use super::{parse_duration, print, print_json, print_line};

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Issue a token that lets in one unknown machine, or proves that a machine is a certain node, and print it. It
    /// cannot be printed again.
    #[command(after_help = "\
Examples:
  slipway-server token add --expires 1h
  slipway-server token add --node web1")]
    Add {
        /// Id or name of the node that the token identifies. Its machine sends the token at each boot.
        #[arg(long)]
        node: Option<String>,
        /// How long the token is valid, such as 90s, 30m, 1h or 7d; by default until it is used, or revoked.
        #[arg(long, value_parser = parse_duration)]
        expires: Option<u64>,
    },
    /// List the tokens that `token add` issued, with their ids and use.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token that `token add` issued.
    Revoke {
        /// Id of the token in the list, or the token itself.
        token: String,
    },
    /// Issue a token for a boot reporter that you install by hand, and print it. It cannot be printed again.
    BootReporter {
        /// Id, name or claim code of the machine whose newest run it reports to.
        node: String,
    },
}

/// Runs a command about tokens.
pub async fn run(store: &Store, command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Add { node, expires } => {
            print_line(&operate::add_token(store, node.as_deref(), expires).await?.token)
        }
        TokenCommand::List { json: true } => print_json(&operate::list_tokens(store).await?),
        TokenCommand::List { json: false } => {
            let nodes = nodes::all(&mut *store.read().await?).await?;
            let labels = nodes.iter().map(|node| (node.id.as_str(), node.label())).collect();
            print(&token_table(&operate::list_tokens(store).await?, &labels, now()))
        }
        TokenCommand::Revoke { token } => {
            print_line(&format!("token {} is revoked", operate::revoke_token(store, &token).await?.id))
        }
        TokenCommand::BootReporter { node } => {
            print_line(&operate::add_run_token(store, &node, Purpose::Boot).await?.0)
        }
    }
}

fn token_table(tokens: &[TokenStatus], labels: &HashMap<&str, &str>, now: Millis) -> String {
    let rows = tokens.iter().map(|token| {
        let expires = token.expires_at.map_or_else(dash, |at| match at <= now {
            true => format!("{} (expired)", utc(at)),
            false => utc(at),
        });
        let used = token.used_at.map_or_else(dash, |at| {
            let by = token.node.as_deref().map_or("a removed node", |node| labels.get(node).copied().unwrap_or(node));
            let address = token.used_by_address.as_deref().unwrap_or("-");
            format!("{} by {by} from {address}", utc(at))
        });
        let made_for =
            token.made_for.as_deref().map_or_else(dash, |id| labels.get(id).copied().unwrap_or(id).to_owned());
        let made_for = if token.useless.is_some() { format!("{made_for} (out of service)") } else { made_for };
        vec![token.id.clone(), made_for, utc(token.created_at), expires, used]
    });
    table(&["Id", "Node", "Issued", "Expires", "Used"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_which_tokens_are_still_good() {
        let token = |expires_at, node: Option<&str>| TokenStatus {
            id: "0123456789ab".to_owned(),
            created_at: 0,
            expires_at,
            used_at: node.map(|_| 1_000),
            used_by_address: node.map(|_| "192.0.2.7".to_owned()),
            node: node.map(str::to_owned),
            made_for: None,
            useless: None,
        };
        let tokens =
            [token(None, None), token(Some(60_000), None), token(Some(120_000), None), token(None, Some("n1"))];
        let text = token_table(&tokens, &HashMap::from([("n1", "web1")]), 60_000);
        let ends = ["-  -", "1970-01-01 00:01:00 UTC (expired)  -", "1970-01-01 00:02:00 UTC            -"];
        for (line, end) in text.lines().skip(1).zip(ends) {
            let (end, line) = (end.split_whitespace(), line.split_whitespace());
            assert_eq!(line.skip(5).collect::<Vec<_>>(), end.collect::<Vec<_>>(), "{text}");
        }
        assert!(text.ends_with("1970-01-01 00:00:01 UTC by web1 from 192.0.2.7\n"), "{text}");
    }
}
