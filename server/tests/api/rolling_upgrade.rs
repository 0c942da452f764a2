//! Servers that are upgraded one after the other: a program runs on the schema of the next version.
//!
//! The program of the next version is not made yet, so its schema is made here: what an `expand` migration may do, to
//! each table, and the number of that migration. The program of today is then the version before. A program of the real
//! version before takes part if `SLIPWAY_PREVIOUS_PROGRAM` names it, as before a release.

use std::path::Path;

use reqwest::StatusCode;
use slipway_protocol::{Event, EventKind, NodeState, Workflow};
use slipway_server::operate::{self, NewNode};
use slipway_server::store::db;

use crate::postgres;
use crate::site::Site;
use crate::support::{Machine, TestServer, with_certificate};
use crate::work::{TWO_STEPS, new_run};

/// A whole installation by one server: a machine enrols, gets its work and does it.
async fn install(site: &Site, address: &str, number: u32) {
    let (store, ca) = (site.store().await, site.succeed(&["ca"]));
    let (name, url) = (format!("web{number}"), format!("https://{address}"));
    let machine = Machine::with_uuid(&format!("4c4c4544-0042-3010-8058-b7c04f5{number:05x}"));
    let new =
        NewNode { name: Some(name.clone()), identity: machine.identity.clone(), release: true, ..NewNode::default() };
    operate::add_node(&store, new).await.unwrap();
    let request = machine.request();
    // The first request after the change may be refused once, as machines know it.
    let client = crate::support::trusting(&ca).build().unwrap();
    let enrol = async || client.post(format!("{url}/v1/enrol")).json(&request).send().await.unwrap();
    let enrolled: slipway_protocol::Enrolment = again(enrol).await.json().await.unwrap();
    let client = with_certificate(&ca, &machine.key, &enrolled.certificate);
    operate::start_run(&store, &ca, &name, new_run(TWO_STEPS)).await.unwrap();
    let ask = async || client.get(format!("{url}/v1/node/workflow?wait=5")).send().await.unwrap();
    let workflow: Workflow = again(ask).await.json().await.unwrap();
    let kinds = [EventKind::Started, EventKind::Succeeded(Default::default())];
    let kinds = kinds.iter().cycle().zip([0, 0, 1, 1]);
    let events: Vec<Event> = (1..)
        .zip(kinds)
        .map(|(seq, (kind, step))| Event { seq, at: 1, step, attempt: 1, kind: kind.clone() })
        .collect();
    let body = serde_json::json!({ "run": workflow.run, "events": events });
    again(async || client.post(format!("{url}/v1/node/events")).json(&body).send().await.unwrap()).await;
    assert_eq!(operate::show_node(&store, &name).await.unwrap().state, NodeState::Installed);
}

/// Sends a request again while the server says that it is for the moment only.
async fn again(send: impl AsyncFn() -> reqwest::Response) -> reqwest::Response {
    for _ in 0..5 {
        let response = send().await;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            continue;
        }
        assert_eq!(response.status(), StatusCode::OK, "{response:?}");
        return response;
    }
    panic!("the server goes on refusing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_before_runs_on_the_schema_of_the_next() {
    let site = Site::new();
    let one = site.serve("one");
    // More than the connections of the server, so that each has prepared its statements.
    for number in 0..12 {
        install(&site, &one.address, number).await;
    }
    let execute = |sql: &str| postgres::execute(site.folder.path(), sql);
    let tables = execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '\\_%'");
    let columns = tables.lines().map(|table| {
        format!(
            "ALTER TABLE {table} ADD COLUMN later TEXT; ALTER TABLE {table} ADD COLUMN last BIGINT NOT NULL DEFAULT 7;"
        )
    });
    let next = "CREATE TABLE later (id BIGINT PRIMARY KEY); INSERT INTO _sqlx_migrations \
                (version, description, success, checksum, execution_time) VALUES (9000, 'later', TRUE, '', 0);";
    execute(&format!("{}{next}", columns.collect::<String>()));
    for number in 12..24 {
        install(&site, &one.address, number).await;
    }
    // The version before may also start, and commands of it work.
    let other = site.serve("other");
    install(&site, &other.address, 24).await;
    assert!(site.succeed(&["node", "list"]).contains("web24"));
    assert_eq!(site.servers().len(), 2);

    // The version after that removes what this one needs, and says so.
    execute("UPDATE settings SET value = '9001 9.9.0' WHERE name = 'schema-usable-from'");
    let refused = site.command("third", &["server", "list"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("slipway-server 9.9.0 changed its schema so that older versions such as this one"), "{said}");
    assert!(said.contains("install version 9.9.0 or a newer one here, or restore a backup"), "{said}");
    assert!(!one.log().contains("panicked") && !other.log().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_the_real_version_before_go_on_while_others_are_upgraded() {
    let Some(before) = std::env::var_os("SLIPWAY_PREVIOUS_PROGRAM") else {
        eprintln!("not checked: SLIPWAY_PREVIOUS_PROGRAM does not name the slipway-server of the version before");
        return;
    };
    let site = Site::new();
    let (one, other) = (site.serve_by(&before, "one"), site.serve_by(&before, "other"));
    let list = site.command_of(&before, "one", &["ca"]).output().unwrap();
    assert!(list.status.success(), "{list:?}");
    // The first command of the new version changes the schema.
    site.succeed(&["ca"]);
    for number in 0..12 {
        install(&site, [&one, &other][number as usize % 2].address.as_str(), number).await;
    }
    one.stop();
    let one = site.serve("one");
    for number in 12..24 {
        install(&site, [&one, &other][number as usize % 2].address.as_str(), number).await;
    }
    other.stop();
    install(&site, &site.serve("other").address, 24).await;
}

#[tokio::test]
async fn each_migration_is_made() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let sql = "SELECT COUNT(*) AS number FROM _sqlx_migrations";
    let row = db::query(sql).fetch_one(&mut store.read().await.unwrap()).await.unwrap();
    let folder = if store.kind() == "sqlite" { "sqlite" } else { "postgres" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(row.get::<i64>("number").unwrap(), i64::try_from(files).unwrap());
}

#[test]
fn each_migration_says_whether_the_version_before_can_go_on() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut count = 0;
    for entry in ["postgres", "sqlite"].iter().flat_map(|name| std::fs::read_dir(folder.join(name)).unwrap()) {
        let path = entry.unwrap().path();
        let number: u32 = path.file_name().unwrap().to_str().unwrap()[..4].parse().unwrap();
        if number < 21 {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let says = text.starts_with("-- expand: ") || text.starts_with("-- contract: ");
        assert!(
            says,
            "the first line of {path:?} does not begin with `-- expand: ` or `-- contract: `, see store/upgrade.rs"
        );
        // What no older program minds.
        if text.starts_with("-- expand: ") {
            for statement in text.split(';').map(|text| {
                let code = text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join(" ");
                code.trim().to_uppercase()
            }) {
                let is_addition = ["", "CREATE TABLE ", "CREATE INDEX ", "INSERT INTO "]
                    .iter()
                    .any(|verb| if verb.is_empty() { statement.is_empty() } else { statement.starts_with(verb) });
                let adds_column = statement.starts_with("ALTER TABLE ")
                    && statement.contains(" ADD COLUMN ")
                    && (!statement.contains("NOT NULL") || statement.contains("DEFAULT"));
                assert!(is_addition || adds_column, "{path:?} is no expansion: {statement}");
            }
        }
        count += 1;
    }
    assert!(count >= 2);
}
