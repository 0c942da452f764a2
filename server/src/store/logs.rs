//! The nodes' logs, in chunks as they were uploaded.

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number};

/// Number of boots of a node whose logs are kept.
const MAX_BOOTS: i64 = 8;
/// Maximum size of the log kept for one boot, in bytes.
const MAX_BOOT_BYTES: u64 = 64 << 20;
/// Number of bytes counted for each chunk in addition to its data, so that tiny chunks cannot fill the disk either.
const CHUNK_OVERHEAD: i64 = 256;

/// A boot whose log is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LoggedBoot {
    /// Id of the boot.
    pub boot_id: String,
    /// When the first part of the log that is kept came, in milliseconds since 1970.
    pub first_at: Millis,
    /// When the last part came.
    pub last_at: Millis,
    /// Size of what is stored, in bytes.
    pub bytes: u64,
}

/// A piece of a node's log.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Offset of the chunk in the boot's log, in bytes.
    pub first_byte: u64,
    /// Content of the chunk.
    pub data: Vec<u8>,
}

/// Stores a chunk, unless a chunk with the same offset and boot exists. Chunks beyond the limit are accepted and
/// discarded, because the node could not do anything about a full log, and a full log must not stop the node.
pub async fn insert(
    connection: &mut Connection,
    node: &str,
    boot_id: &str,
    run: Option<&str>,
    chunk: &Chunk,
    now: Millis,
) -> Result<(), Error> {
    let stored = stored_bytes(connection, node, boot_id).await?;
    let length = chunk.data.len() as u64;
    if chunk.first_byte.saturating_add(length) > MAX_BOOT_BYTES || stored.saturating_add(length) > MAX_BOOT_BYTES {
        return Ok(());
    }
    let sql = "INSERT INTO logs (node, boot_id, first_byte, run, data, at) VALUES ($1, $2, $3, $4, $5, $6) \
               ON CONFLICT (node, boot_id, first_byte) DO NOTHING";
    let query = db::query(sql).bind(node).bind(boot_id).bind(chunk.first_byte.cast_signed()).bind(run);
    let query = query.bind(chunk.data.as_slice()).bind(now.cast_signed());
    query.execute(&mut *connection).await.map_err(database("storing a log"))?;
    // Only the first stored chunk of a boot, at whatever offset, adds a boot.
    if stored == 0 {
        // This boot stays in any case: if the clock was set back, all others are later.
        let sql = "DELETE FROM logs WHERE node = $1 AND boot_id <> $2 AND boot_id NOT IN \
                   (SELECT boot_id FROM logs WHERE node = $1 AND boot_id <> $2 GROUP BY boot_id \
                   ORDER BY MAX(at) DESC LIMIT $3)";
        let query = db::query(sql).bind(node).bind(boot_id).bind(MAX_BOOTS - 1);
        query.execute(&mut *connection).await.map_err(database("removing old logs"))?;
    }
    Ok(())
}

/// Returns the number of bytes counted for the chunks of a boot, including `CHUNK_OVERHEAD`.
async fn stored_bytes(connection: &mut Connection, node: &str, boot_id: &str) -> Result<u64, Error> {
    let sql = "SELECT CAST(COALESCE(SUM(LENGTH(data) + $1), 0) AS BIGINT) AS stored FROM logs \
               WHERE node = $2 AND boot_id = $3";
    let row = db::query(sql).bind(CHUNK_OVERHEAD).bind(node).bind(boot_id).fetch_one(connection).await;
    number(&row.map_err(database("measuring a log"))?, "stored")
}

/// Returns the boots of a node whose logs are kept, newest first.
pub async fn boots(connection: &mut Connection, node: &str) -> Result<Vec<LoggedBoot>, Error> {
    let sql = "SELECT boot_id, MIN(at) AS first_at, MAX(at) AS last_at, \
               CAST(SUM(LENGTH(data)) AS BIGINT) AS bytes FROM logs WHERE node = $1 GROUP BY boot_id \
               ORDER BY MAX(at) DESC, MAX(first_byte) DESC";
    let rows = db::query(sql).bind(node).fetch_all(connection).await;
    rows.map_err(database("reading the boots of a node"))?.iter().map(logged_boot).collect()
}

/// Reads a boot from a row with its id, times and bytes.
pub fn logged_boot(row: &Row) -> Result<LoggedBoot, Error> {
    Ok(LoggedBoot {
        boot_id: get(row, "boot_id")?,
        first_at: number(row, "first_at")?,
        last_at: number(row, "last_at")?,
        bytes: number(row, "bytes")?,
    })
}

/// Returns the chunks of a boot of a node, in order of their offsets.
pub async fn of_boot(connection: &mut Connection, node: &str, boot_id: &str) -> Result<Vec<Chunk>, Error> {
    let sql = "SELECT first_byte, data FROM logs WHERE node = $1 AND boot_id = $2 ORDER BY first_byte";
    let query = db::query(sql).bind(node).bind(boot_id);
    let rows = query.fetch_all(connection).await.map_err(database("reading a log"))?;
    rows.iter().map(|row| Ok(Chunk { first_byte: number(row, "first_byte")?, data: get(row, "data")? })).collect()
}

/// Joins the chunks to one text. Overlapping bytes appear once, and a line marks each gap.
pub fn text(chunks: &[Chunk]) -> String {
    let mut log = Vec::new();
    let mut end = 0;
    for chunk in chunks {
        if chunk.first_byte > end {
            let gap = format!("\n[{} bytes of the log are missing here]\n", chunk.first_byte - end);
            log.extend_from_slice(gap.as_bytes());
            end = chunk.first_byte;
        }
        let known = usize::try_from(end - chunk.first_byte).unwrap_or(usize::MAX);
        let new = chunk.data.get(known..).unwrap_or_default();
        log.extend_from_slice(new);
        end += new.len() as u64;
    }
    String::from_utf8_lossy(&log).into_owned()
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Identity;

    use super::*;
    use crate::base::data::DataDir;
    use crate::store::nodes::{self, Node};
    use crate::store::{Store, commit};

    #[tokio::test]
    async fn a_new_log_is_kept_also_when_the_clock_was_set_back() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::of(&DataDir::make(folder.path())?).await?;
        let node = Node::new(Identity::default(), 1);
        let mut transaction = store.write().await?;
        nodes::save(&mut transaction, &node).await?;
        let chunk = |first_byte| Chunk { first_byte, data: b"a line\n".to_vec() };
        for boot in 0..MAX_BOOTS + 2 {
            insert(&mut transaction, &node.id, &format!("b{boot}"), None, &chunk(0), 5000 + boot.cast_unsigned())
                .await?;
        }
        for first_byte in [0, 7] {
            insert(&mut transaction, &node.id, "back", None, &chunk(first_byte), 1000 + first_byte).await?;
        }
        let row = db::query("SELECT COUNT(*) AS chunks, COUNT(DISTINCT boot_id) AS boots FROM logs");
        let row = row.fetch_one(&mut transaction).await?;
        let counts = (number(&row, "chunks")?, number(&row, "boots")?);
        assert_eq!(counts, (MAX_BOOTS.cast_unsigned() + 1, MAX_BOOTS.cast_unsigned()), "this boot has two chunks");
        let row =
            db::query("SELECT COUNT(*) AS own FROM logs WHERE boot_id = 'back'").fetch_one(&mut transaction).await?;
        assert_eq!(number(&row, "own")?, 2);
        commit(transaction).await?;
        Ok(())
    }

    #[test]
    fn chunks_make_one_text() {
        let chunk = |first_byte, data: &str| Chunk { first_byte, data: data.as_bytes().to_vec() };
        let log = text(&[chunk(0, "one\ntw"), chunk(4, "two\n"), chunk(5, "wo"), chunk(10, "four\n")]);
        assert_eq!(log, "one\ntwo\n\n[2 bytes of the log are missing here]\nfour\n");
    }

    #[test]
    fn a_chunk_may_end_within_a_character() {
        let bytes = "é".as_bytes();
        let halves =
            [Chunk { first_byte: 0, data: bytes[..1].to_vec() }, Chunk { first_byte: 1, data: bytes[1..].to_vec() }];
        assert_eq!(text(&halves), "é");
    }
}
