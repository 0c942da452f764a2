//! Finds out whether the database can be used now: it answers, has the schema of this version, and accepts changes.

use std::time::Duration;

use crate::base::error::{DatabaseFault, Error, Trouble};
use crate::base::time::now;
use crate::store::{Connection, Pools, Store, commit, database, db, get, settings};

/// How long the answer to a question, and the storing of a change, may take.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Age of a commit that shows that changes are accepted. So a server that works stores nothing for the probe, which
/// then does not queue behind all who write.
const RECENT: Duration = Duration::from_secs(2);
/// Name of the setting that is changed: when the database was last probed, in milliseconds since 1970.
const NAME: &str = "probed-at";

/// Fails if the database cannot be used now. Takes at most three seconds.
pub async fn probe(store: &Store) -> Result<(), Error> {
    in_time("asking the database", check_schema(store)).await?;
    if store.meters().has_committed_within(RECENT) {
        return Ok(());
    }
    in_time("storing a change", change(store)).await
}

/// Checks that the changes to the schema that this version knows were made. Those of later versions leave what servers
/// that run need.
async fn check_schema(store: &Store) -> Result<(), Error> {
    let mut connection = store.read().await?;
    let sql = "SELECT version, success FROM _sqlx_migrations ORDER BY version";
    let rows =
        db::query(sql).fetch_all(&mut connection).await.map_err(database("reading the version of the schema"))?;
    let mut found = Vec::new();
    for row in &rows {
        found.extend(get::<bool>(row, "success")?.then_some(get::<i64>(row, "version")?));
    }
    if found.len() == rows.len() && store.versions().iter().all(|version| found.contains(version)) {
        return Ok(());
    }
    let message = "its schema is older than this version of slipway-server, or a change of it was interrupted: restart \
                   the server, which makes the changes that are missing or says what to do";
    let source = DatabaseFault::new(message).of(Trouble::OtherSchema);
    Err(Error::Database { doing: "checking the version of the schema", source })
}

/// Stores a change that nobody reads. A transaction that is rolled back would not show that a disk is full.
async fn change(store: &Store) -> Result<(), Error> {
    match &store.pools {
        Pools::Sqlite(_) => {
            let mut transaction = store.write().await?;
            settings::write(&mut transaction, NAME, &now().to_string()).await?;
            commit(transaction).await
        }
        // One statement is a transaction of its own. It does without the lock of those that read before they write.
        Pools::Postgres(_) => {
            let mut connection: Box<Connection> = store.read().await?;
            settings::write(&mut connection, NAME, &now().to_string()).await
        }
    }
}

async fn in_time(doing: &'static str, done: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let late = |_| {
        let message = format!("it did not answer within {} ms", PATIENCE.as_millis());
        Err(Error::Database { doing, source: DatabaseFault::transient(message) })
    };
    tokio::time::timeout(PATIENCE, done).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::data::DataDir;

    #[tokio::test]
    async fn a_database_that_accepts_no_changes_is_found() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let store = Store::of(&data).await?;
        probe(&store).await?;
        store.close().await;
        let error = probe(&Store::read_only_of(&data)).await.expect_err("it is read-only");
        let Error::Database { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.trouble(), Trouble::ReadOnly, "{source}");
        Ok(())
    }
}
