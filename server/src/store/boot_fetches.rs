//! Boot files that machines fetched, and which node fetched them. Requests for an iPXE script and by DHCP identify the
//! machine. Any other request has only an address. It is assigned to a node if that node alone was recently seen there.

use std::collections::HashMap;
use std::net::IpAddr;

use slipway_protocol::{BootFetch, BootWay, SiteEventKind};

use crate::base::error::Error;
use crate::base::random;
use crate::base::rate::Origin;
use crate::base::time::Millis;
use crate::store::history::{self, NewEvent};
use crate::store::{Connection, Row, database, db, enum_from_text, get, number, to_word};

/// Maximum number of fetches kept for a node.
const MAX_OF_NODE: i64 = 64;
/// Maximum number of fetches kept for unknown machines, and of those from one network.
const MAX_OF_STRANGERS: i64 = 1000;
const MAX_OF_NETWORK: i64 = 16;
/// Maximum number of addresses kept for a node.
const MAX_ADDRESSES: i64 = 8;
/// Milliseconds in which repeated fetches of a file by the same machine count as one.
const REPEATED: Millis = 60 * 1000;
/// Milliseconds after a fetch in which the machine is expected to identify itself. After that it is reported as silent.
pub const AWAITED: Millis = 15 * 60 * 1000;
/// Milliseconds for which a node's address, and a fetch by an unknown machine, are remembered. DHCP servers commonly
/// lease an address for a day.
pub const REMEMBERED: Millis = 24 * 60 * 60 * 1000;

/// A boot file that was fetched completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// When the last byte was sent, in milliseconds since 1970.
    pub at: Millis,
    /// The client's address.
    pub address: IpAddr,
    /// Path of the file below the boot folder.
    pub file: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Protocol of the fetch.
    pub way: BootWay,
    /// Whether it is a script that makes the machine boot from its disk.
    pub to_disk: bool,
    /// Id of the node, if the request identified it.
    pub node: Option<String>,
}

/// Stores a fetch. It belongs to the node that it names, else to the only node recently seen at its address, else to no
/// node. The node's oldest fetches are removed if there are too many.
pub async fn record(connection: &mut Connection, fetched: &Fetched) -> Result<(), Error> {
    let node = match &fetched.node {
        Some(node) if exists(connection, node).await? => {
            met(connection, node, fetched.address, fetched.at).await?;
            Some(node.clone())
        }
        _ => only_node_at(connection, fetched.address, fetched.at).await?,
    };
    if !is_repeated(connection, fetched, node.as_deref()).await? {
        insert(connection, fetched, node.as_deref()).await?;
        if let Some(node) = &node {
            let message = format!("the machine fetched {} from {}", fetched.file, text(fetched.address));
            let event = NewEvent::new(message).of_id(node);
            history::record(connection, SiteEventKind::BootFilesFetched, event, fetched.at).await?;
        }
    }
    match node {
        Some(node) => forget_of_node(connection, &node).await,
        None => Ok(()),
    }
}

/// Records that a node's machine has this address, and assigns it the fetches from there in the last minutes, unless
/// another node was recently seen there.
pub async fn met(connection: &mut Connection, node: &str, address: IpAddr, now: Millis) -> Result<(), Error> {
    store_address(connection, node, &text(address), now).await?;
    if only_node_at(connection, address, now).await?.as_deref() != Some(node) {
        return Ok(());
    }
    let sql = "UPDATE boot_fetches SET node = $1 WHERE node IS NULL AND address = $2 AND at >= $3";
    let query = db::query(sql).bind(node).bind(text(address)).bind(now.saturating_sub(AWAITED).cast_signed());
    query.execute(&mut *connection).await.map_err(database("assigning fetched boot files to a node"))?;
    forget_of_node(connection, node).await
}

/// Returns the fetches since the node was last heard from and last told to boot from its disk, oldest first, by node
/// id. For one node, or for all if `node` is `None`.
pub async fn since_heard(
    connection: &mut Connection,
    node: Option<&str>,
) -> Result<HashMap<String, Vec<BootFetch>>, Error> {
    let sql = "SELECT node, at, address, file, bytes, way FROM boot_fetches WHERE node IS NOT NULL \
               AND (CAST($1 AS TEXT) IS NULL OR node = $1) \
               AND at > COALESCE((SELECT heard.at FROM node_contacts AS heard \
               WHERE heard.node = boot_fetches.node), 0) AND at > COALESCE((SELECT MAX(sent.at) \
               FROM boot_fetches AS sent WHERE sent.node = boot_fetches.node AND sent.to_disk), 0) \
               ORDER BY at, boot_fetches.id";
    let rows = db::query(sql).bind(node).fetch_all(connection).await;
    let mut fetches: HashMap<String, Vec<BootFetch>> = HashMap::new();
    for row in rows.map_err(database("reading fetched boot files"))? {
        fetches.entry(get(&row, "node")?).or_default().push(from_row(&row)?);
    }
    Ok(fetches)
}

/// Like [`since_heard`], for these nodes.
pub async fn since_heard_of_nodes(
    connection: &mut Connection,
    nodes: &[String],
) -> Result<HashMap<String, Vec<BootFetch>>, Error> {
    let sql = "SELECT node, at, address, file, bytes, way FROM boot_fetches WHERE node IN ({ids}) \
               AND at > COALESCE((SELECT heard.at FROM node_contacts AS heard \
               WHERE heard.node = boot_fetches.node), 0) AND at > COALESCE((SELECT MAX(sent.at) \
               FROM boot_fetches AS sent WHERE sent.node = boot_fetches.node AND sent.to_disk), 0) \
               ORDER BY at, boot_fetches.id";
    let mut fetches: HashMap<String, Vec<BootFetch>> = HashMap::new();
    for query in db::by_ids(sql, nodes) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading fetched boot files"))?;
        for row in &rows {
            fetches.entry(get(row, "node")?).or_default().push(from_row(row)?);
        }
    }
    Ok(fetches)
}

/// Returns the newest fetch from each address, newest first. Left out are addresses where a node was recently seen, and
/// those from where a machine has asked to enrol since.
pub async fn of_strangers(connection: &mut Connection, now: Millis) -> Result<Vec<BootFetch>, Error> {
    let sql = "SELECT at, address, file, bytes, way FROM (SELECT boot_fetches.*, \
               ROW_NUMBER() OVER (PARTITION BY address ORDER BY at DESC, id) AS place \
               FROM boot_fetches WHERE node IS NULL AND NOT to_disk) AS newest \
               WHERE place = 1 AND at >= $1 \
               AND NOT EXISTS (SELECT 1 FROM node_addresses WHERE address = newest.address AND at >= $1) \
               AND NOT EXISTS (SELECT 1 FROM claimants WHERE address = newest.address AND last_asked >= newest.at) \
               ORDER BY at DESC, address";
    let query = db::query(sql).bind(now.saturating_sub(REMEMBERED).cast_signed());
    let rows =
        query.fetch_all(connection).await.map_err(database("reading the boot files that unknown machines fetched"))?;
    rows.iter().map(from_row).collect()
}

/// Removes the oldest fetches of unknown machines beyond the limits.
pub async fn forget_of_strangers(connection: &mut Connection, now: Millis) -> Result<(), Error> {
    let sql = "DELETE FROM boot_fetches WHERE node IS NULL AND (at < $1 OR id IN (SELECT id FROM (SELECT id, network, \
               ROW_NUMBER() OVER (ORDER BY at DESC, id) AS place, \
               ROW_NUMBER() OVER (PARTITION BY network ORDER BY at DESC, id) AS place_in_network \
               FROM boot_fetches WHERE node IS NULL) AS kept WHERE place > $2 OR place_in_network > $3))";
    let done = db::query(sql)
        .bind(now.saturating_sub(REMEMBERED).cast_signed())
        .bind(MAX_OF_STRANGERS)
        .bind(MAX_OF_NETWORK)
        .execute(connection)
        .await;
    done.map(drop).map_err(database("removing old records of the boot files that unknown machines fetched"))
}

/// Returns the id of the node recently seen at an address, if it is the only one.
pub async fn only_node_at(connection: &mut Connection, address: IpAddr, now: Millis) -> Result<Option<String>, Error> {
    let sql = "SELECT node FROM node_addresses JOIN nodes ON nodes.id = node \
               WHERE address = $1 AND at >= $2 AND state <> 'decommissioned' LIMIT 2";
    let query = db::query(sql).bind(text(address)).bind(now.saturating_sub(REMEMBERED).cast_signed());
    let rows = query.fetch_all(connection).await.map_err(database("looking for the node at an address"))?;
    match rows.as_slice() {
        [row] => get(row, "node").map(Some),
        _ => Ok(None),
    }
}

async fn exists(connection: &mut Connection, node: &str) -> Result<bool, Error> {
    let row = db::query("SELECT 1 FROM nodes WHERE id = $1").bind(node).fetch_optional(connection).await;
    Ok(row.map_err(database("looking up a node"))?.is_some())
}

/// Stores that a node made a request from an address.
pub async fn seen_at(connection: &mut Connection, node: &str, address: IpAddr, now: Millis) -> Result<(), Error> {
    store_address(connection, node, &text(address), now).await
}

async fn store_address(connection: &mut Connection, node: &str, address: &str, now: Millis) -> Result<(), Error> {
    // The node may have been removed since the caller looked it up.
    let sql = "INSERT INTO node_addresses (node, address, at) \
               SELECT $1, $2, $3 WHERE EXISTS (SELECT 1 FROM nodes WHERE id = $1) \
               ON CONFLICT (node, address) DO UPDATE SET at = excluded.at";
    let query = db::query(sql).bind(node).bind(address).bind(now.cast_signed());
    query.execute(&mut *connection).await.map_err(database("storing the address of a node"))?;
    let sql = "DELETE FROM node_addresses WHERE node = $1 AND (at < $2 OR address IN (SELECT address FROM \
               (SELECT address, ROW_NUMBER() OVER (ORDER BY at DESC, address) AS place FROM node_addresses \
               WHERE node = $1) AS kept WHERE place > $3))";
    let query = db::query(sql).bind(node).bind(now.saturating_sub(REMEMBERED).cast_signed()).bind(MAX_ADDRESSES);
    query.execute(connection).await.map(drop).map_err(database("removing old addresses of a node"))
}

/// Returns whether this fetch repeats an earlier one, and then updates the time and size of the earlier one. Firmware
/// retries, and loaders fetch files in parts.
async fn is_repeated(connection: &mut Connection, fetched: &Fetched, node: Option<&str>) -> Result<bool, Error> {
    let sql = "UPDATE boot_fetches SET at = $1, bytes = $2 WHERE address = $3 AND file = $4 AND way = $5 \
               AND to_disk = $6 AND at >= $7 AND (node = $8 OR (node IS NULL AND $8 IS NULL))";
    let done = db::query(sql)
        .bind(fetched.at.cast_signed())
        .bind(fetched.bytes.cast_signed())
        .bind(text(fetched.address))
        .bind(&fetched.file)
        .bind(to_word(&fetched.way))
        .bind(fetched.to_disk)
        .bind(fetched.at.saturating_sub(REPEATED).cast_signed())
        .bind(node)
        .execute(connection)
        .await;
    Ok(done.map_err(database("storing that a boot file was fetched again"))? > 0)
}

async fn insert(connection: &mut Connection, fetched: &Fetched, node: Option<&str>) -> Result<(), Error> {
    let sql = "INSERT INTO boot_fetches (id, at, address, network, file, bytes, way, to_disk, node) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let done = db::query(sql)
        .bind(random::id())
        .bind(fetched.at.cast_signed())
        .bind(text(fetched.address))
        .bind(Origin::of(fetched.address).to_string())
        .bind(&fetched.file)
        .bind(fetched.bytes.cast_signed())
        .bind(to_word(&fetched.way))
        .bind(fetched.to_disk)
        .bind(node)
        .execute(connection)
        .await;
    done.map(drop).map_err(database("storing that a boot file was fetched"))
}

async fn forget_of_node(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let sql = "DELETE FROM boot_fetches WHERE id IN (SELECT id FROM (SELECT id, \
               ROW_NUMBER() OVER (ORDER BY at DESC, id) AS place FROM boot_fetches WHERE node = $1) AS kept \
               WHERE place > $2)";
    let done = db::query(sql).bind(node).bind(MAX_OF_NODE).execute(connection).await;
    done.map(drop).map_err(database("removing old records of the boot files that a node fetched"))
}

fn text(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

fn from_row(row: &Row) -> Result<BootFetch, Error> {
    Ok(BootFetch {
        at: number(row, "at")?,
        file: get(row, "file")?,
        bytes: number(row, "bytes")?,
        way: enum_from_text(row, "way")?,
        address: get(row, "address")?,
    })
}
