//! `slipway-server database copy`.

use std::path::Path;

use anyhow::ensure;
use slipway_server::base::data::{DataDir, Place};
use slipway_server::store::Store;
use slipway_server::store::copy::{Copied, Side, copy};

use crate::cli::words::table;
use crate::cli::{place, print};

pub async fn run(from: &Place, to: &str, password: Option<&Path>) -> anyhow::Result<()> {
    let postgres = match to {
        "sqlite" => {
            ensure!(password.is_none(), "--to-password-file is for a database on a PostgreSQL server");
            None
        }
        url => Some(place::url(url, password)?),
    };
    let from = DataDir::open(from)?;
    let (from_name, lock) = (from.database_name(), from.lock_for_copying()?);
    let (root, site_key) = (from.root().to_owned(), from.site_key().cloned());
    let target = DataDir::make(Place { root, postgres, site_key, bucket: None })?;
    let target_name = target.database_name();
    let (source, copied) = (Store::to_copy_from(&from).await?, Store::to_copy_to(&target).await?);
    if target.postgres().is_none() {
        target.give_to_owner(&target.database())?;
    }
    let (from_side, to_side) = (Side { store: &source, name: &from_name }, Side { store: &copied, name: &target_name });
    let done = copy(from_side, to_side, &mut super::teller()).await;
    source.close().await;
    copied.close().await;
    drop(lock);
    print(&report(&done?, &from, &from_name, &target_name))?;
    print(&next(&target, to))
}

fn report(Copied { tables, replaced }: &Copied, from: &DataDir, from_name: &str, to_name: &str) -> String {
    let rows = tables.iter().map(|(name, rows)| vec![name.clone(), rows.to_string()]);
    let count: u64 = tables.iter().map(|(_, rows)| rows).sum();
    let mut text = table(&["Table", "Rows"], rows.collect());
    text += &format!("{count} rows of {} tables are copied to {to_name}; each was compared\n", tables.len());
    if *replaced > 0 {
        text += &format!(
            "{replaced} rows had NUL characters in texts, which PostgreSQL cannot store; the copies have U+FFFD \
             instead\n"
        );
    }
    text += &format!("no server or command uses {from_name} any more; remove it when the new database is backed up\n");
    text + &format!("keys, certificates and images stay in {}\n", from.root().display())
}

/// Says what to run next.
fn next(target: &DataDir, to: &str) -> String {
    let data = target.root().display();
    match target.postgres() {
        Some(_) => format!(
            "next: set SLIPWAY_DATABASE='{to}' in /etc/default/slipway-server, or run `slipway-server --data {data} \
             --database '{to}' serve` with the options as before\n"
        ),
        None => format!(
            "next: remove SLIPWAY_DATABASE from /etc/default/slipway-server, or run `slipway-server --data {data} \
             serve` with the options as before, but without --database\n"
        ),
    }
}
