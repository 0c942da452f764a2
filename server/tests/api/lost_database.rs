//! A data folder whose database is gone, damaged or of another version: the server says so, and begins no other.

use std::fs;
use std::path::Path;

use slipway_server::store::{Store, db};

use crate::program::{command, fail, made, started, succeed};

const SERVE: [&str; 5] = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];

/// A data folder of a server that was killed, so that its database has a log beside it.
fn killed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    assert!(fs::metadata(folder.path().join("slipway.db-wal")).unwrap().len() > 0);
    folder
}

fn remove(data: &Path, names: &[&str]) {
    names.iter().for_each(|name| fs::remove_file(data.join(name)).unwrap());
}

#[test]
fn a_server_that_lost_its_database_does_not_begin_another() {
    type Harm = fn(&Path);
    let table: [(Harm, &str); 3] = [
        (|data| remove(data, &["slipway.db"]), "missing"),
        (|data| fs::write(data.join("slipway.db"), "").unwrap(), "empty"),
        // As after `cp` of the file alone, while a server ran.
        (|data| remove(data, &["slipway.db-wal", "slipway.db-shm"]), "without content"),
    ];
    for (harm, state) in table {
        let folder = killed();
        let data = folder.path();
        harm(data);
        let log = fs::read(data.join("slipway.db-wal")).ok();
        let (database, shown) = (data.join("slipway.db"), data.display());
        let elsewhere = match state {
            "missing" => "give --database or SLIPWAY_DATABASE if it is on a PostgreSQL server, ",
            _ => "",
        };
        let expect = format!(
            "slipway-server: the database {database:?} is {state}, but a server has run on this folder: put it back, \
             {elsewhere}or move the folder away and restore a backup with `slipway-server --data {shown} restore \
             FILE`; to start over without the previous machines, images, runs and operators, run `mv \
             {shown}/server.pem {shown}/server.pem.old`"
        );
        for arguments in [&SERVE as &[&str], &["status"], &["operator-token"]] {
            assert_eq!(fail(data, arguments), expect, "{arguments:?}");
        }
        assert_eq!(database.exists(), state != "missing");
        if log.is_some() {
            assert!(fs::read(data.join("slipway.db-wal")).ok() == log, "{state}: the log is as it was");
        }
        fs::rename(data.join("server.pem"), data.join("server.pem.old")).unwrap();
        drop(started(command(data, &SERVE)));
        succeed(data, &["status"]);
    }
}

#[test]
fn a_first_start_that_was_cut_off_goes_on() {
    let folder = killed();
    let data = folder.path();
    // The first files of a start, with a database that nothing was written to yet.
    remove(data, &["server.pem", "server.key", "jwt.key", "operator-token", "slipway.db-wal", "slipway.db-shm"]);
    fs::write(data.join("slipway.db"), "").unwrap();
    drop(started(command(data, &SERVE)));
    succeed(data, &["status"]);
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_with_what_to_do() {
    let folder = killed();
    let data = folder.path();
    let database = data.join("slipway.db");
    let said = |what: &str| format!("slipway-server: opening the database {database:?}: {what}");

    let store = Store::open(&database).await.unwrap();
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'later', TRUE, x'', 0)";
    let mut transaction = store.write().await.unwrap();
    db::query(newer).execute(&mut transaction).await.unwrap();
    // Nor does it say which programs may use it, as since version 0.1.0.
    let silent = "DELETE FROM settings WHERE name = 'schema-usable-from'";
    assert_eq!(db::query(silent).execute(&mut transaction).await.unwrap(), 1);
    transaction.commit().await.unwrap();
    let another = "it was used with another version of slipway-server, which changed its schema (change 9999): install \
                   that version or a newer one, or restore a backup that this version made";
    assert_eq!(fail(data, &["status"]), said(another));

    let mut transaction = store.write().await.unwrap();
    db::query("UPDATE _sqlx_migrations SET success = FALSE WHERE version = 9999")
        .execute(&mut transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let cut_off = "an update of its schema was interrupted (change 9999): move the data folder away and restore a \
                   backup from before the update with `slipway-server restore`";
    assert_eq!(fail(data, &["status"]), said(cut_off));
    store.close().await;

    let whole = fs::read(&database).unwrap();
    for (from, reason) in [(0, "file is not a database"), (100, "database disk image is malformed")] {
        let mut torn = whole.clone();
        torn[from..].fill(0xA5);
        fs::write(&database, torn).unwrap();
        for arguments in [&SERVE as &[&str], &["status"]] {
            let damaged = format!(
                "it is damaged (SQLite: {reason}); stop the server, move the data folder away and restore a backup \
                 with `slipway-server restore`"
            );
            assert_eq!(fail(data, arguments), said(&damaged));
        }
    }
}
