//! `slipway-server node recovery-key`.

pub mod recipients;

use clap::Args;
use slipway_server::base::time::{Millis, now};
use slipway_server::keys::seal;
use slipway_server::node::recovery_keys;
use slipway_server::operate;
use slipway_server::store::Store;
use slipway_server::store::recovery_keys::Stored;

use super::words::{self, duration, table};

#[derive(Args)]
pub struct Options {
    /// Id, name or claim code.
    node: String,
    /// Print volumes, the runs that encrypted them, and how old their keys are, without the keys.
    #[arg(long, conflicts_with = "forget")]
    list: bool,
    /// Print only the key of this volume; may be given several times.
    #[arg(long = "volume", value_name = "VOLUME", conflicts_with_all = ["list", "forget"])]
    volumes: Vec<String>,
    /// Print the key of this volume and delete it from the database; may be given several times. Fails if a key is
    /// probably in use.
    #[arg(long, value_name = "VOLUME")]
    forget: Vec<String>,
}

pub async fn run(store: &Store, options: Options) -> anyhow::Result<()> {
    let node = operate::show_node(store, &options.node).await?;
    let label = words::label(&node);
    if options.list {
        return super::print(&listed(&recovery_keys::list_keys(store, &node.id, label).await?, now()));
    }
    let volumes = &options.forget;
    if !volumes.is_empty() {
        recovery_keys::check_unused(store, &node.id, label, volumes).await?;
    }
    let chosen = if volumes.is_empty() { &options.volumes } else { volumes };
    let keys = recovery_keys::show_keys(store, &node.id, label, chosen).await?;
    // An encrypted key is printed as `age --decrypt` reads it. It includes the name of its volume.
    let line = |stored: &Stored| match seal::is_sealed(&stored.key.key) {
        true => stored.key.key.reveal().to_owned(),
        false => format!("{} {}\n", stored.key.volume, stored.key.key.reveal()),
    };
    // The keys are printed before they are deleted, so that the key of a volume named by mistake is not lost.
    super::print(&keys.iter().map(line).collect::<String>())?;
    if volumes.is_empty() {
        return Ok(());
    }
    recovery_keys::forget_keys(store, &node.id, label, volumes).await?;
    super::erase(store).await
}

fn listed(keys: &[Stored], now: Millis) -> String {
    let row = |stored: &Stored| {
        let age = format!("{} ago", duration(now.saturating_sub(stored.stored_at)));
        vec![stored.key.volume.clone(), stored.run.clone(), age]
    };
    table(&["Volume", "Run", "Stored"], keys.iter().map(row).collect())
}
