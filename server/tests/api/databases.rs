//! SQLite and PostgreSQL hold the same: the same schema, for the same statements, with the same effects.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slipway_protocol::{ErrorCode, Identity};
use slipway_server::base::data::{DataDir, DatabaseUrl, Place};
use slipway_server::store::nodes::{self, Node};
use slipway_server::store::{Connection, Store, db, settings};
use sqlx::{Executor, SqlSafeStr};
use tempfile::TempDir;

use crate::postgres;
use crate::program::{fail, run};
use crate::support::UUID;

/// A data folder whose database is on a PostgreSQL server.
fn on_postgres() -> (TempDir, DataDir) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    let url = DatabaseUrl::new(&postgres::url(&root)).unwrap();
    (folder, DataDir::make(Place { root, postgres: Some(url), ..Place::default() }).unwrap())
}

/// A store of each kind.
async fn both() -> (Vec<TempDir>, Store, Store) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Store::of(&DataDir::make(&folder.path().join("data")).unwrap()).await.unwrap();
    let (other, data) = on_postgres();
    (vec![folder, other], sqlite, Store::of(&data).await.unwrap())
}

/// What each row of an answer says, its columns joined.
async fn lines(store: &Store, sql: &'static str, columns: &[&str]) -> BTreeSet<String> {
    let rows = db::query(sql).fetch_all(&mut store.read().await.unwrap()).await.unwrap();
    let text = |row: &db::Row, column: &str| row.get::<Option<String>>(column).unwrap().unwrap_or_default();
    rows.iter().map(|row| columns.iter().map(|column| text(row, column)).collect::<Vec<_>>().join(" ")).collect()
}

fn check_same(one: &BTreeSet<String>, other: &BTreeSet<String>) {
    let differences: Vec<&String> = one.symmetric_difference(other).collect();
    assert!(differences.is_empty(), "only one of the two has {differences:#?}");
}

#[tokio::test]
async fn both_databases_have_the_same_schema() {
    let (_folders, sqlite, other) = both().await;
    let columns = ["word", "place", "type", "must", "preset"];
    // The primary key of SQLite's tables does not exclude NULL by itself, but nothing here stores it there.
    let of_sqlite = "SELECT 'column' AS word, tables.name || '.' || columns.name AS place, \
        CASE columns.type WHEN 'BLOB' THEN 'BYTEA' ELSE columns.type END AS type, \
        CASE WHEN \"notnull\" OR pk THEN 'NOT NULL' ELSE 'NULL' END AS must, \
        LOWER(REPLACE(COALESCE(dflt_value, ''), '''', '')) AS preset \
        FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns \
        WHERE tables.type = 'table' AND tables.name <> '_sqlx_migrations'";
    // With their collation, because texts compare by their bytes in SQLite.
    let of_postgres = "SELECT 'column' AS word, table_name || '.' || column_name AS place, \
        CASE WHEN data_type <> 'text' OR collation_name = 'C' THEN UPPER(data_type) \
        ELSE 'text that needs COLLATE \"C\"' END AS type, \
        CASE is_nullable WHEN 'NO' THEN 'NOT NULL' ELSE 'NULL' END AS must, \
        LOWER(REPLACE(SPLIT_PART(COALESCE(column_default, ''), '::', 1), '''', '')) AS preset \
        FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> '_sqlx_migrations'";
    let found = lines(&sqlite, of_sqlite, &columns).await;
    assert!(found.len() > 100, "{found:#?}");
    check_same(&found, &lines(&other, of_postgres, &columns).await);

    let columns = ["place", "word", "columns"];
    let of_sqlite = "SELECT tables.name AS place, \
        CASE WHEN lists.origin = 'pk' THEN 'primary' WHEN \"unique\" THEN 'unique' ELSE 'index' END AS word, \
        (SELECT GROUP_CONCAT(name) FROM pragma_index_info(lists.name)) AS columns \
        FROM sqlite_schema AS tables, pragma_index_list(tables.name) AS lists \
        WHERE tables.type = 'table' AND tables.name <> '_sqlx_migrations'";
    let of_postgres = "SELECT tables.relname::text AS place, \
        CASE WHEN indisprimary THEN 'primary' WHEN indisunique THEN 'unique' ELSE 'index' END AS word, \
        (SELECT STRING_AGG(attname::text, ',' ORDER BY nth) FROM unnest(indkey) WITH ORDINALITY AS keys (key, nth) \
        JOIN pg_attribute ON attrelid = tables.oid AND attnum = key) AS columns \
        FROM pg_index JOIN pg_class AS tables ON tables.oid = indrelid \
        WHERE relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations'";
    let found = lines(&sqlite, of_sqlite, &columns).await;
    assert!(found.len() > 30, "{found:#?}");
    check_same(&found, &lines(&other, of_postgres, &columns).await);

    let columns = ["place", "target", "deletion"];
    let of_sqlite = "SELECT tables.name || '.' || \"from\" AS place, \"table\" || '.' || \"to\" AS target, \
        on_delete AS deletion FROM sqlite_schema AS tables, pragma_foreign_key_list(tables.name)";
    let of_postgres = "SELECT conrelid::regclass || '.' || sources.attname AS place, \
        confrelid::regclass || '.' || targets.attname AS target, \
        CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'other' END AS deletion \
        FROM pg_constraint \
        JOIN pg_attribute AS sources ON sources.attrelid = conrelid AND sources.attnum = ANY (conkey) \
        JOIN pg_attribute AS targets ON targets.attrelid = confrelid AND targets.attnum = ANY (confkey) \
        WHERE contype = 'f'";
    let found = lines(&sqlite, of_sqlite, &columns).await;
    assert!(found.len() > 10, "{found:#?}");
    check_same(&found, &lines(&other, of_postgres, &columns).await);
}

/// Files whose statements are for one database.
const OF_ONE: [&str; 2] = ["store/sqlite.rs", "store/postgres.rs"];

/// The statements in the sources: literals that begin with a verb of SQL.
fn statements(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect();
    let code = code.replace("'\"'", "").replace("\\\"", "'");
    let literals = code.split('"').skip(1).step_by(2);
    let joined = |text: &str| text.split("\\\n").map(str::trim_start).collect::<String>();
    let verbs = ["SELECT ", "INSERT ", "UPDATE ", "DELETE "];
    literals.map(joined).filter(|text| verbs.iter().any(|verb| text.starts_with(verb))).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn each_statement_is_understood_by_both_databases() {
    let (_folders, sqlite, other) = both().await;
    let mut count = 0;
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let source = std::fs::read_to_string(&file).unwrap();
        if OF_ONE.iter().any(|name| file.ends_with(name)) {
            continue;
        }
        assert!(!source.contains("sqlx::query(") || file.ends_with("store/db.rs"), "{file:?} goes past store::db");
        for sql in statements(&source) {
            // One statement has a list of values that is made when it runs.
            let sql = sql.replace("{values}", "($1, CAST($2 AS BIGINT))");
            // The copy and the check compose statements for each table; their tests run them on both.
            if sql.contains('{') {
                continue;
            }
            count += 1;
            for store in [&sqlite, &other] {
                let text = sqlx::AssertSqlSafe(sql.clone()).into_sql_str();
                let prepared = match &mut *store.read().await.unwrap() {
                    Connection::Sqlite(connection) => connection.prepare(text).await.map(drop),
                    Connection::Postgres(connection) => connection.prepare(text).await.map(drop),
                    other => panic!("{other:?} is a transaction"),
                };
                prepared.unwrap_or_else(|error| panic!("{file:?}: {sql}: {error}"));
            }
        }
    }
    assert!(count > 110, "only {count} statements were found");
}

#[tokio::test]
async fn writers_of_two_processes_take_turns() {
    let (_folder, data) = on_postgres();
    let (one, two) = (Store::of(&data).await.unwrap(), Store::of(&data).await.unwrap());
    let mut first = one.write().await.unwrap();
    let waiting = tokio::spawn(async move {
        let mut second = two.write().await.unwrap();
        let seen = settings::read(&mut second, "turn").await.unwrap();
        settings::write(&mut second, "turn", "second").await.unwrap();
        second.commit().await.unwrap();
        seen
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "the first still writes");
    settings::write(&mut first, "turn", "first").await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap().as_deref(), Some("first"), "what it read is the newest");
    let last = settings::read(&mut one.read().await.unwrap(), "turn").await.unwrap();
    assert_eq!(last.as_deref(), Some("second"));
    // A dropped transaction gives the lock back, and leaves nothing.
    let mut dropped = one.write().await.unwrap();
    settings::write(&mut dropped, "turn", "dropped").await.unwrap();
    drop(dropped);
    let mut third = Store::of(&data).await.unwrap().write().await.unwrap();
    assert_eq!(settings::read(&mut third, "turn").await.unwrap().as_deref(), Some("second"));
}

/// PostgreSQL answers to `COMMIT` with a rollback and no error.
#[tokio::test]
async fn a_transaction_with_a_failed_statement_is_not_taken_for_committed() {
    let (_folder, data) = on_postgres();
    let store = Store::of(&data).await.unwrap();
    let mut transaction = store.write().await.unwrap();
    settings::write(&mut transaction, "name", "value").await.unwrap();
    db::query("INSERT INTO settings (name) VALUES ('other')").execute(&mut transaction).await.expect_err("no value");
    transaction.commit().await.expect_err("nothing is stored");
    assert_eq!(settings::read(&mut store.read().await.unwrap(), "name").await.unwrap(), None);
    store.write().await.unwrap().commit().await.expect("the connection is still good");
}

#[tokio::test]
async fn texts_of_machines_have_any_character_and_sort_by_their_bytes() {
    let (_folders, sqlite, other) = both().await;
    let mut found = Vec::new();
    for store in [sqlite, other] {
        let mut transaction = store.write().await.unwrap();
        for (id, name) in [("1", "b"), ("2", "ä"), ("3", "B"), ("4", "a-a"), ("5", "aa")] {
            let mut node = Node::new(Identity { serial: Some(format!("{id}\0")), ..Identity::default() }, 0);
            (node.id, node.name) = (name.to_owned(), Some(format!("{name}😀")));
            nodes::save(&mut transaction, &node).await.unwrap();
        }
        let identity = Identity { serial: Some("3\0".to_owned()), ..Identity::default() };
        let of_three = nodes::matching(&mut transaction, &identity).await.unwrap();
        transaction.commit().await.unwrap();
        let all = nodes::all(&mut store.read().await.unwrap()).await.unwrap();
        found.push((of_three[0].id.clone(), all.into_iter().map(|node| node.id).collect::<Vec<_>>()));
    }
    assert_eq!(found[0], ("B".to_owned(), ["B", "a-a", "aa", "b", "ä"].map(str::to_owned).to_vec()));
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn a_database_that_does_not_belong_to_the_folder_or_the_program_is_refused() {
    let (_folder, data) = on_postgres();
    let url = postgres::url(data.root());
    let name = data.postgres().unwrap().name().to_owned();
    drop(Store::of(&data).await.unwrap());

    let store = Store::of(&data).await.unwrap();
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'later', TRUE, '', 0)";
    db::query(newer).execute(&mut store.read().await.unwrap()).await.unwrap();
    let needs_it = "UPDATE settings SET value = '9999 9.9.9' WHERE name = 'schema-usable-from'";
    assert_eq!(db::query(needs_it).execute(&mut store.read().await.unwrap()).await.unwrap(), 1);
    let error = Store::of(&data).await.expect_err("it is newer").to_string();
    assert_eq!(error, format!("opening the database {name:?}"));

    let (_other, served) = on_postgres();
    std::fs::write(served.path("server.pem"), "").unwrap();
    let error = Store::of(&served).await.expect_err("the database of the folder is elsewhere").to_string();
    assert!(error.contains("has no tables, but a server has run on the data folder"), "{error}");

    let missing = url.rsplit_once('/').unwrap().0.to_owned() + "/missing";
    drop(data.lock_for_serving("https://server.test").unwrap());
    let postgres = Some(DatabaseUrl::new(&missing).unwrap());
    let missing = Place { root: data.root().to_owned(), postgres, ..Place::default() };
    let error = Store::of(&DataDir::make(missing).unwrap()).await.expect_err("there is none");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("createdb"), "{cause}");
}

#[tokio::test]
async fn callers_may_try_again_when_the_database_server_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::new("postgres://slipway@%2Fnowhere/slipway").unwrap();
    let data =
        DataDir::make(Place { root: folder.path().to_owned(), postgres: Some(url), ..Place::default() }).unwrap();
    let error = Store::read_only_of(&data).read().await.expect_err("nobody listens");
    assert_eq!(error.body().code, ErrorCode::Unavailable, "{error:?}");
    let error = Store::of(&data).await.expect_err("nobody listens");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.ends_with("; check the address, and that the database server runs"), "{cause}");
}

#[tokio::test]
async fn operators_give_the_database_by_option_or_variable() {
    let (_folder, data) = on_postgres();
    let url = postgres::url(data.root());
    drop(data.lock_for_serving("https://server.test").unwrap());
    let password = data.path("password");
    std::fs::write(&password, "s3cret\n").unwrap();
    let password = password.to_str().unwrap();
    let add =
        ["--database", &url, "--database-password-file", password, "node", "add", "--name", "web1", "--uuid", UUID];
    let output = run(data.root(), &add);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = nodes::all(&mut Store::of(&data).await.unwrap().read().await.unwrap()).await.unwrap();
    assert_eq!(all.iter().map(Node::label).collect::<Vec<_>>(), ["web1"]);

    let said = fail(data.root(), &["--database", "postgres://u:s3cret@db.example/x", "status"]);
    assert!(said.contains("--database-password-file") && !said.contains("s3cret"), "{said}");
    let said = fail(data.root(), &["--database", &url, "backup", data.path("copy").to_str().unwrap()]);
    assert!(said.contains("pg_dump"), "{said}");
    let said = fail(data.root(), &["--database", &url, "restore", data.path("copy").to_str().unwrap()]);
    assert!(said.contains("pg_restore"), "{said}");
    let said = fail(data.root(), &["--database", "postgres://u@db.example/x?sslmode=require", "status"]);
    assert!(said.contains("verify-full"), "{said}");
}
