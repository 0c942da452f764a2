//! The servers that run on the database.

use serde::Serialize;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, Transaction, database, db, get, number};

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Id of the process: the id of its data folder, a hyphen, and a part that is new at each start.
    pub id: String,
    /// Name of its host.
    pub host: String,
    /// Version of its program.
    pub version: String,
    /// URL at which machines reach it.
    pub url: String,
    /// Public key of the site key that it uses. `None` if its keys are in its data folder alone.
    pub site_key: Option<String>,
    /// Number of the last migration that its program knows.
    pub known_schema: i64,
    /// When it started, in milliseconds since 1970, by the clock of the database.
    pub started_at: Millis,
    /// When it last gave a sign of life, by the same clock.
    pub last_seen: Millis,
    /// By how many milliseconds the clock of its host was ahead of that clock then; negative if it was behind. 0 of
    /// versions that do not say.
    pub clock_ahead: i64,
}

/// Milliseconds without a sign of life after which a server counts as gone.
pub const GONE: Millis = 60 * 1000;

impl Server {
    /// Whether it runs, or ran, on the data folder with this id.
    pub fn is_on(&self, folder: &str) -> bool {
        self.id.rsplit_once('-').is_some_and(|(of, _)| of == folder)
    }

    /// Whether it gave a sign of life lately. `now` is the time by the clock of the database.
    pub fn is_live(&self, now: Millis) -> bool {
        // One in the future is from before the clock was set back.
        self.last_seen.abs_diff(now) < GONE
    }
}

/// Stores a server, replacing what is stored of it.
pub async fn save(transaction: &mut Transaction, server: &Server) -> Result<(), Error> {
    let sql = "INSERT INTO servers (id, host, version, url, site_key, known_schema, started_at, last_seen, \
               clock_ahead) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO UPDATE SET \
               last_seen = excluded.last_seen, clock_ahead = excluded.clock_ahead";
    let query = db::query(sql).bind(&server.id).bind(&server.host).bind(&server.version).bind(&server.url);
    let query = query.bind(&server.site_key).bind(server.known_schema);
    let query = query.bind(server.started_at.cast_signed()).bind(server.last_seen.cast_signed());
    let query = query.bind(server.clock_ahead);
    query.execute(transaction).await.map(drop).map_err(database("storing that this server runs"))
}

/// Returns all servers that are stored, in the order of their hosts and starts. Some may run no more.
pub async fn all(connection: &mut Connection) -> Result<Vec<Server>, Error> {
    let sql = "SELECT id, host, version, url, site_key, known_schema, started_at, last_seen, clock_ahead \
               FROM servers ORDER BY host, started_at, id";
    let rows = db::query(sql).fetch_all(connection).await;
    let server = |row: &Row| {
        Ok(Server {
            id: get(row, "id")?,
            host: get(row, "host")?,
            version: get(row, "version")?,
            url: get(row, "url")?,
            site_key: get(row, "site_key")?,
            known_schema: get(row, "known_schema")?,
            started_at: number(row, "started_at")?,
            last_seen: number(row, "last_seen")?,
            clock_ahead: get(row, "clock_ahead")?,
        })
    };
    rows.map_err(database("reading which servers run"))?.iter().map(server).collect()
}

/// Removes a server, if it is stored.
pub async fn remove(transaction: &mut Transaction, id: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM servers WHERE id = $1").bind(id).execute(transaction).await;
    done.map(drop).map_err(database("removing a server that stopped"))
}
