//! `slipway-server database copy`: all tables move between SQLite and PostgreSQL, and a server goes on there.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use slipway_protocol::{Event, EventAck, EventKind, NodeState};
use slipway_server::base::data::{DataDir, DatabaseUrl, Place};
use slipway_server::operate;
use slipway_server::store::{Connection, Store, events, settings};
use sqlx::{AssertSqlSafe, Executor, Row, SqlSafeStr};
use tempfile::TempDir;

use crate::installing::{add_system, debian, start};
use crate::postgres;
use crate::program::Ended;
use crate::support::TestServer;

/// The program on a data folder, with no database given but by these arguments.
fn slipway(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-server"));
    command.arg("--data").arg(data).args(arguments).env_remove("SLIPWAY_LOG").env_remove("SLIPWAY_DATABASE");
    command
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn run(data: &Path, arguments: &[&str]) -> Output {
    slipway(data, arguments).output().unwrap()
}

fn succeed(data: &Path, arguments: &[&str]) -> String {
    let output = run(data, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fail(data: &Path, arguments: &[&str]) -> String {
    let output = run(data, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// A data folder with an SQLite database, in which each table has rows.
async fn full() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(folder.path()).unwrap();
    drop(data.lock_for_serving("https://server.test").unwrap());
    let store = Store::of(&data).await.unwrap();
    fill(&store).await;
    store.close().await;
    folder
}

/// Runs statements on an SQLite database and returns their last column as texts.
async fn on_sqlite(store: &Store, sql: &str) -> Vec<String> {
    let mut connection = store.read().await.unwrap();
    let Connection::Sqlite(connection) = &mut *connection else { panic!("it is PostgreSQL") };
    let rows = connection.fetch_all(AssertSqlSafe(sql).into_sql_str()).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(row.len() - 1)).collect()
}

async fn table_names(store: &Store) -> Vec<String> {
    on_sqlite(store, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> '_sqlx_migrations'").await
}

/// Puts rows of every kind into each table: with and without values where a column may be empty, and more of them than
/// are copied at once.
async fn fill(store: &Store) {
    let mut sql = "PRAGMA foreign_keys = OFF;".to_owned();
    for table in table_names(store).await {
        let about =
            format!("SELECT name || ':' || type || ':' || (\"notnull\" OR pk) FROM pragma_table_info('{table}')");
        let columns = on_sqlite(store, &about).await;
        let columns: Vec<Vec<&str>> = columns.iter().map(|column| column.split(':').collect()).collect();
        for number in 0..450 {
            let value = |column: &Vec<&str>| match (column[1], number % 3) {
                (_, 0) if column[2] == "0" => "NULL".to_owned(),
                // Of all references, so that they are all there.
                ("TEXT", _) if ["id", "node", "run", "made_for"].contains(&column[0]) => format!("'é''{number}'"),
                ("TEXT", 1) => format!("'{table} 😀\"\\ {number}'"),
                ("TEXT", _) => format!("'{number}'"),
                ("BIGINT", 1) => format!("{}", -number),
                ("BIGINT", _) => format!("{} + {number}", 1_u64 << 62),
                ("BOOLEAN", _) => ["TRUE", "FALSE"][number as usize % 2].to_owned(),
                ("BLOB", 1) => "x''".to_owned(),
                ("BLOB", _) => "x'00ff0a27'".to_owned(),
                other => panic!("{other:?}"),
            };
            let names: Vec<&str> = columns.iter().map(|column| column[0]).collect();
            let values: Vec<String> = columns.iter().map(value).collect();
            sql += &format!("INSERT INTO {table} ({}) VALUES ({});", names.join(", "), values.join(", "));
        }
    }
    // One transaction, because each would wait for the disk.
    on_sqlite(
        store,
        &format!("{sql} PRAGMA foreign_keys = ON;").replacen(';', "; BEGIN;", 1).replace(" PRAGMA", "COMMIT; PRAGMA"),
    )
    .await;
}

/// All rows of all tables of an SQLite database, with the types of their values.
async fn dump(data: &Path) -> Vec<String> {
    let store = Store::of(&DataDir::open(data).unwrap()).await.unwrap();
    let mut found = Vec::new();
    for table in table_names(&store).await {
        let columns = on_sqlite(&store, &format!("SELECT name FROM pragma_table_info('{table}')")).await;
        let quoted: Vec<String> = columns.iter().map(|column| format!("typeof({column}) || quote({column})")).collect();
        let rows = on_sqlite(&store, &format!("SELECT {} FROM {table} ORDER BY 1", quoted.join(" || ',' || "))).await;
        assert!(rows.len() >= 450, "{table} has only {} rows", rows.len());
        found.extend(rows.into_iter().map(|row| format!("{table}: {row}")));
    }
    store.close().await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tables_go_to_postgres_and_back() {
    let folder = full().await;
    let (data, url) = (folder.path(), postgres::url(folder.path()));
    let before = dump(data).await;
    let stopped = DataDir::open(data).unwrap().stopped_at();
    let opened_before = Store::of(&DataDir::open(data).unwrap()).await.unwrap();

    let said = succeed(data, &["database", "copy", "--to", &url]);
    assert!(said.contains("recovery_keys") && said.contains("20252 rows of 45 tables are copied"), "{said}");
    assert!(said.contains(&format!("SLIPWAY_DATABASE='{url}'")), "{said}");
    assert_eq!(DataDir::open(data).unwrap().stopped_at(), stopped, "when a server last ran is still known");

    // Nobody goes on with the old tables.
    let moved = "were copied to postgres://slipway@";
    for arguments in [&["status"] as &[&str], &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]] {
        let said = fail(data, arguments);
        assert!(said.contains(moved) && said.contains("give --database"), "{said}");
    }
    let mut late = opened_before.write().await.unwrap();
    let error = settings::write(&mut late, "server-url", "x").await.expect_err("it would be lost");
    assert!(slipway_server::chain(&error).contains("nothing is stored here any more"), "{error:?}");
    drop(late);
    opened_before.close().await;
    let said = fail(data, &["database", "copy", "--to", &postgres::url(&data.join("another"))]);
    assert!(said.contains(moved), "{said}");
    let said = fail(data, &["database", "copy", "--to", &url]);
    assert!(said.contains(moved), "the copy is complete: {said}");

    let said = succeed(data, &["--database", &url, "database", "copy", "--to", "sqlite"]);
    assert!(said.contains("20252 rows of 45 tables are copied") && said.contains("remove SLIPWAY_DATABASE"), "{said}");
    let after = dump(data).await;
    let differences: Vec<_> = before.iter().zip(&after).filter(|(one, other)| one != other).take(5).collect();
    assert!(before.len() == after.len() && differences.is_empty(), "{differences:#?}");
    let said = fail(data, &["--database", &url, "status"]);
    assert!(said.contains("leave out --database"), "{said}");

    // The tables that are left there do not prevent another move.
    succeed(data, &["database", "copy", "--to", &url]);
    assert_eq!(postgres::execute(data, "SELECT COUNT(*) FROM nodes").trim(), "450");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_differs_is_refused_with_its_table_and_key() {
    let folder = full().await;
    let (data, url) = (folder.path(), postgres::url(folder.path()));
    let before = dump(data).await;
    let target =
        Place { root: data.join("target"), postgres: Some(DatabaseUrl::new(&url).unwrap()), ..Place::default() };
    Store::of(&DataDir::make(target).unwrap()).await.unwrap().close().await;
    let count = |table: &str| postgres::execute(data, &format!("SELECT COUNT(*) FROM {table}")).trim().to_owned();
    for (harm, expect) in [
        (
            "NEW.event_json := 'x'",
            "the copy of the table events differs from it: of the row with run = \"é'7\", seq = ",
        ),
        ("NEW.seq := 7", "the copy of the table events differs from it: where the table has run = \"é'7\", seq = "),
        ("RETURN NULL", "the copy of the table events differs from it: where the table has run = \"é'7\", seq = "),
    ] {
        postgres::execute(
            data,
            &format!(
                "CREATE OR REPLACE FUNCTION harm() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
                 IF NEW.run = 'é''7' THEN {harm}; END IF; RETURN NEW; END$$; \
                 CREATE OR REPLACE TRIGGER harm BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION harm()"
            ),
        );
        let said = fail(data, &["database", "copy", "--to", &url]);
        assert!(said.contains(expect), "{said}");
        assert_eq!((count("nodes"), count("events")), ("0".to_owned(), "0".to_owned()));
        assert!(dump(data).await == before, "and it is still in use");
    }
    postgres::execute(data, "DROP TRIGGER harm ON events; INSERT INTO settings VALUES ('a', 'b')");
    let said = fail(data, &["database", "copy", "--to", &url]);
    assert!(said.contains("the table settings of postgres://slipway@") && said.contains("has rows"), "{said}");
    postgres::execute(data, "DELETE FROM settings");
    succeed(data, &["database", "copy", "--to", &url]);
    postgres::execute(data, "CREATE TABLE other (a INT)");
    let said = fail(data, &["--database", &url, "database", "copy", "--to", "sqlite"]);
    assert!(said.contains("the column a of the table other has the type INTEGER"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_with_nul_characters_are_copied_with_another_character() {
    let folder = full().await;
    let (data, url) = (folder.path(), postgres::url(folder.path()));
    let store = Store::of(&DataDir::open(data).unwrap()).await.unwrap();
    on_sqlite(&store, "INSERT INTO settings VALUES ('a' || char(0), '1'), ('ab', '2'), ('c', '3' || char(0))").await;
    store.close().await;
    let said = succeed(data, &["database", "copy", "--to", &url]);
    assert!(said.contains("\n2 rows had NUL characters in texts"), "{said}");
    let found = postgres::execute(data, "SELECT name, value FROM settings WHERE LEFT(name, 1) IN ('a', 'c')");
    assert_eq!(found, "a\u{fffd}|1\nab|2\nc|3\u{fffd}\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_killed_can_be_started_again() {
    let folder = full().await;
    let (data, url) = (folder.path(), postgres::url(folder.path()));
    let before = dump(data).await;
    let target =
        Place { root: data.join("target"), postgres: Some(DatabaseUrl::new(&url).unwrap()), ..Place::default() };

    // Somebody holds a table, so that the copy is in its middle when it is killed.
    let store = Store::of(&DataDir::make(target).unwrap()).await.unwrap();
    let mut holding = store.read().await.unwrap();
    let Connection::Postgres(holder) = &mut *holding else { panic!("it is SQLite") };
    holder.execute("BEGIN; LOCK TABLE runs IN SHARE MODE").await.unwrap();
    let arguments = ["database", "copy", "--to", &url];
    let mut child = Ended(slipway(data, &arguments).spawn().unwrap());
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%runs%'";
    let deadline = Instant::now() + Duration::from_secs(20);
    while postgres::execute(data, waits).trim() == "0" {
        assert!(Instant::now() < deadline && child.0.try_wait().unwrap().is_none(), "it does not come to the table");
    }
    let said = fail(data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("slipway-server database copy"), "{said}");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    holder.execute("COMMIT").await.unwrap();
    drop(holding);
    store.close().await;
    assert!(dump(data).await == before, "the source is as it was");
    succeed(data, &arguments);

    // To SQLite, wherever it is.
    let back = ["--database", &url, "database", "copy", "--to", "sqlite"];
    for pause in [20, 60, 120, 250, 400] {
        let mut child = Ended(slipway(data, &back).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(pause));
        child.0.kill().unwrap();
        if child.0.wait().unwrap().success() {
            break;
        }
        let said = run(data, &["status"]);
        assert!(!said.status.success(), "{pause} ms: the file has no tables, or those from before");
    }
    let last = run(data, &back);
    let said = text(&last.stderr);
    assert!(last.status.success() || said.contains("were copied to"), "{said}");
    assert!(dump(data).await == before);
}

/// The other database that belongs to a data folder.
fn other(place: &Place) -> (Place, String) {
    match place.postgres {
        Some(_) => (Place { root: place.root.clone(), postgres: None, ..Place::default() }, "sqlite".to_owned()),
        None => {
            let url = postgres::url(&place.root);
            let postgres = Some(DatabaseUrl::new(&url).unwrap());
            (Place { root: place.root.clone(), postgres, ..Place::default() }, url)
        }
    }
}

fn copy(from: &Place, to: &str) {
    let url = postgres::url(&from.root);
    let database = ["--database", url.as_str()];
    let given: &[&str] = if from.postgres.is_some() { &database } else { &[] };
    succeed(&from.root, &[given, &["database", "copy", "--to", to]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_progress_goes_on_with_the_copied_database_and_back() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let run = start(&server, debian()).await.unwrap().id;
    let workflow = node.workflow(&server).await.unwrap();
    let note = |seq| Event { seq, at: 1, step: 0, attempt: 1, kind: EventKind::Note(format!("note {seq}")) };
    let post = async |server: &TestServer, events: &[Event]| {
        node.post_events(server, &run, events).await.json::<EventAck>().await.unwrap()
    };
    let started = Event { seq: 1, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    assert_eq!(post(&server, &[started]).await.seq, 1);

    let (folder, place) = server.stop().await;
    let (other, name) = other(&place);
    copy(&place, &name);
    let server = TestServer::start_at(folder, other.clone()).await;
    assert_eq!(node.workflow(&server).await.unwrap().run, run, "also after a power cycle");
    assert_eq!(post(&server, &[note(2), note(3)]).await.seq, 3);

    let (folder, _) = server.stop().await;
    copy(&other, place.postgres.as_ref().map_or("sqlite", |_| postgres::url(&place.root).leak()));
    let server = TestServer::start_at(folder, place).await;
    assert_eq!(post(&server, &[note(2), note(3), note(4)]).await.seq, 4);
    let mut events_of_run = events::of_run(&mut server.store().await.read().await.unwrap(), &run).await.unwrap();
    events_of_run.remove(0);
    assert_eq!(events_of_run, [note(2), note(3), note(4)], "none is lost, none is there twice");
    let rest = slipway_protocol::Workflow { next_seq: 5, ..workflow };
    node.finish(&server, &rest).await;
    let shown = operate::show_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(shown.state, NodeState::Booting, "it is installed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_use_is_not_copied() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let said = fail(&data, &["database", "copy", "--to", &postgres::url(&data.join("another"))]);
    assert!(said.contains("another server already runs") || said.contains("is missing"), "{said}");

    // Of PostgreSQL, also by a server of another data folder.
    let folder = full().await;
    let (data, url) = (folder.path(), postgres::url(folder.path()));
    succeed(data, &["database", "copy", "--to", &url]);
    let place =
        Place { root: data.join("elsewhere"), postgres: Some(DatabaseUrl::new(&url).unwrap()), ..Place::default() };
    let user = Store::of(&DataDir::make(place).unwrap()).await.unwrap();
    let connection = user.read().await.unwrap();
    let said = fail(data, &["--database", &url, "database", "copy", "--to", "sqlite"]);
    assert!(
        said.contains("uses postgres://slipway@") && said.contains("from the host of the database server"),
        "{said}"
    );
    drop(connection);
    // PostgreSQL lists a connection for a moment after its end, and the copy waits for that.
    let closing = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        user.close().await;
    });
    succeed(data, &["--database", &url, "database", "copy", "--to", "sqlite"]);
    closing.await.unwrap();
}
