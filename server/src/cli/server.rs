//! `slipway-server server`: the servers of a site.

use clap::Subcommand;
use slipway_server::base::time::Millis;
use slipway_server::site::presence;
use slipway_server::store::Store;
use slipway_server::store::servers::Server;

use super::words::{duration, table};
use super::{print, print_json};

#[derive(Subcommand)]
pub enum ServerCommand {
    /// List the servers that run on the database. One that was killed is listed for a minute.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(store: &Store, command: ServerCommand) -> anyhow::Result<()> {
    let ServerCommand::List { json } = command;
    let (servers, now) = presence::live(store).await?;
    if json { print_json(&servers) } else { print(&servers_table(&servers, now)) }
}

/// A table of servers. `now` is the time by the clock of the database.
pub fn servers_table(servers: &[Server], now: Millis) -> String {
    let ago = |at: Millis| format!("{} ago", duration(now.saturating_sub(at)));
    let row = |server: &Server| {
        let Server { host, version, url, .. } = server;
        vec![host.clone(), version.clone(), url.clone(), ago(server.started_at), ago(server.last_seen)]
    };
    table(&["Server", "Version", "URL", "Started", "Last seen"], servers.iter().map(row).collect())
}
