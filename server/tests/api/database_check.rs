//! `slipway-server database check` finds what is wrong in the database and in the folder of images.

use std::fs;
use std::os::unix::fs::FileExt;

use slipway_server::store::{Store, commit, db, settings};

use crate::installing::{add_system, debian, start};
use crate::postgres;
use crate::program::{fail, run, succeed};
use crate::support::TestServer;

/// Runs statements on the database of a server.
async fn execute(store: &Store, statements: &[&'static str]) {
    let mut transaction = store.write().await.unwrap();
    for sql in statements {
        db::query(sql).execute(&mut transaction).await.unwrap();
    }
    commit(transaction).await.unwrap();
}

/// What a check prints of problems, which must be there.
fn problems(server: &TestServer) -> String {
    let output = run(&server.data_path(), &["database", "check"]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("found in"), "{stderr}");
    stdout.lines().filter(|line| line.starts_with("problem: ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_each_problem_and_what_to_do() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    node.workflow(&server).await.unwrap();
    let (data, store) = (server.data_path(), server.store().await);
    let said = succeed(&data, &["database", "check"]);
    assert!(said.contains("no problems were found in "), "{said}");
    assert!(said.contains("checked whether the files of 1 images and"), "{said}");

    let image = server.data().image(&system.image);
    let content = fs::read(&image).unwrap();
    fs::write(&image, "short").unwrap();
    let found = problems(&server);
    assert!(found.contains("its size differs") && found.contains("image add"), "{found}");
    fs::remove_file(&image).unwrap();
    assert!(problems(&server).contains("is missing on this server"));
    fs::write(&image, content).unwrap();

    let table: [(&[&'static str], &str, &[&'static str]); 4] = [
        (
            &["UPDATE runs SET phone_home_json = '[]'"],
            "decoding phone_home_json from the database: invalid type: sequence",
            &["UPDATE runs SET phone_home_json = '{}'"],
        ),
        (
            &["UPDATE nodes SET required = 'gold'"],
            "unknown variant `gold`",
            &["UPDATE nodes SET required = 'registered'"],
        ),
        (
            &["UPDATE nodes SET boot_id = run, run = 'gone'"],
            "1 rows of nodes name in run what runs does not have, such as \"gone\"",
            &["UPDATE nodes SET run = boot_id"],
        ),
        (
            &[
                "UPDATE images SET file_name = digest",
                "UPDATE images SET digest = 'sha256:e3b0c44298fc1c149afbf4c8996fb924' || \
                 '27ae41e4649b934ca495991b7852b855'",
            ],
            "the operating system debian has the image sha256:",
            &["UPDATE images SET digest = file_name"],
        ),
    ];
    for (harm, expect, repair) in table {
        execute(&store, harm).await;
        let found = problems(&server);
        assert!(found.contains(expect), "{found}");
        execute(&store, repair).await;
    }
    succeed(&data, &["database", "check"]);

    execute(&store, &["DELETE FROM _sqlx_migrations WHERE version > 18"]).await;
    let found = problems(&server);
    assert!(found.contains("the next start of the server updates the schema"), "{found}");
}

/// The program of today is the older one here: what a later version adds is made by hand.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_newer_schema_what_is_known_is_checked_and_the_version_is_named() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let (data, store) = (server.data_path(), server.store().await);
    execute(
        &store,
        &[
            "CREATE TABLE later (id BIGINT PRIMARY KEY, node TEXT)",
            "INSERT INTO later (id, node) VALUES (1, 'gone')",
            "ALTER TABLE nodes ADD COLUMN later TEXT",
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             SELECT 9999, 'later', TRUE, checksum, 0 FROM _sqlx_migrations LIMIT 1",
        ],
    )
    .await;
    let newer = "tables and columns that this program does not know, because the schema is newer: ";
    for (made_by, program) in [("23 0.1.0", "a newer slipway-server"), ("9999 9.8.0", "slipway-server 9.8.0")] {
        let mut transaction = store.write().await.unwrap();
        settings::write(&mut transaction, "schema-made-by", made_by).await.unwrap();
        commit(transaction).await.unwrap();
        let said = succeed(&data, &["database", "check"]);
        assert!(
            said.contains(&format!("not checked: {newer}{program} made it, with changes up to 9999, and ")),
            "{said}"
        );
        assert!(said.contains("; run `slipway-server database check` of that version or a newer one\n"), "{said}");
        assert!(said.contains("no problems were found in what this version knows of "), "{said}");
        assert!(said.contains("rows of ") && !said.contains("problem: "), "{said}");
    }
    execute(&store, &["UPDATE nodes SET required = 'gold'"]).await;
    let found = problems(&server);
    assert!(found.contains("unknown variant `gold`") && !found.contains("newer"), "{found}");

    let mut transaction = store.write().await.unwrap();
    settings::write(&mut transaction, "schema-usable-from", "9999 9.8.0").await.unwrap();
    commit(transaction).await.unwrap();
    let refused = fail(&data, &["database", "check"]);
    assert!(refused.contains("cannot be checked by this program, because its schema is newer: slipway-server 9.8.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_damage_and_values_that_sqlite_alone_accepts() {
    if postgres::is_asked() {
        return;
    }
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let store = server.store().await;
    execute(&store, &["UPDATE nodes SET armed = 2"]).await;
    assert!(problems(&server).contains("the value of armed in a row of the table nodes cannot be read"));
    execute(&store, &["UPDATE nodes SET armed = 1"]).await;
    // Pages of the file after the first ones, which an opened database reads at once.
    let data = server.data_path();
    store.close().await;
    let (_folder, _) = server.stop().await;
    let file = fs::File::options().write(true).open(data.join("slipway.db")).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xA5; 8192], length - 16384).unwrap();
    let output = run(&data, &["database", "check"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && said.contains("is damaged"), "{said}");
}
