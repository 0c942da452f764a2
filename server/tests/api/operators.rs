//! Operators have names and tokens of their own.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::ErrorCode;
use slipway_server::base::limits::{Limits, Pace};
use slipway_server::base::random::token_hash;
use slipway_server::operate::{self, FIRST};
use slipway_server::store::db;

use crate::output::logged;
use crate::program::{fail, succeed};
use crate::support::{TestServer, UUID, refusal};

const HOUR: u64 = 60 * 60 * 1000;
const DAY: u64 = 24 * HOUR;

/// What the server says to a request with this token: nothing if the token works.
async fn refused(server: &TestServer, token: &str) -> Option<String> {
    let response = server.client().get(server.url("/v1/operator/nodes")).bearer_auth(token).send().await.unwrap();
    if response.status() == StatusCode::OK {
        return None;
    }
    let refusal = refusal(response).await;
    assert_eq!(refusal.code, ErrorCode::Unauthenticated);
    Some(refusal.message)
}

/// Adds an operator as a command does, in another process than the server. `lifetime` is in milliseconds.
async fn add(server: &TestServer, name: &str, lifetime: Option<u64>) -> String {
    operate::add_operator(&server.store().await, &server.data(), name, lifetime).await.unwrap().token
}

/// Adds an operator whose token has expired.
async fn add_expired(server: &TestServer, name: &str) -> String {
    let token = add(server, name, Some(1)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    token
}

async fn rotate(server: &TestServer, name: &str, keep: u64) -> String {
    operate::rotate_operator(&server.store().await, &server.data(), name, keep).await.unwrap().token
}

#[tokio::test]
async fn an_expired_token_is_refused_with_what_to_do() {
    let server = TestServer::start().await;
    let fresh = add(&server, "alice", Some(HOUR)).await;
    let expired = add_expired(&server, "bob").await;
    assert_eq!(refused(&server, &fresh).await, None);
    let message = refused(&server, &expired).await.unwrap();
    assert!(message.starts_with("the token of operator bob expired at 20"), "{message}");
    assert!(message.ends_with("`slipway-server operator rotate bob` on the server makes a new one"), "{message}");
}

#[tokio::test]
async fn a_removed_operator_is_refused_at_once() {
    let server = TestServer::start().await;
    let (alice, bob) = (add(&server, "alice", None).await, add(&server, "bob", None).await);
    assert_eq!(refused(&server, &alice).await, None);
    assert_eq!(succeed(&server.data_path(), &["operator", "remove", "alice"]), "operator alice is removed\n");
    let message = refused(&server, &alice).await.unwrap();
    assert!(message.starts_with("no operator has this token"), "{message}");
    assert_eq!(refused(&server, &bob).await, None);
}

#[tokio::test]
async fn a_rotated_token_ends_at_once_or_is_kept_as_long_as_asked() {
    let server = TestServer::start().await;
    let one = add(&server, "alice", None).await;
    let two = rotate(&server, "alice", 0).await;
    let message = refused(&server, &one).await.unwrap();
    assert!(message.starts_with("this token of operator alice was replaced, and ended at 20"), "{message}");
    let three = rotate(&server, "alice", HOUR).await;
    assert_eq!((refused(&server, &two).await, refused(&server, &three).await), (None, None));
    let until = operate::list_operators(&server.store().await).await.unwrap()[0].old_until.unwrap();
    let now = slipway_server::base::time::now();
    assert!((now + HOUR - 60_000..=now + HOUR).contains(&until), "{until}");
    let four = rotate(&server, "alice", HOUR).await;
    assert!(refused(&server, &two).await.is_some(), "one old token is kept");
    assert_eq!((refused(&server, &three).await, refused(&server, &four).await), (None, None));

    // A new token is valid for as long as the old one was, and the old one not for longer.
    let expired = add_expired(&server, "bob").await;
    let new = rotate(&server, "bob", HOUR).await;
    assert!(refused(&server, &expired).await.unwrap().contains("was replaced"));
    assert!(refused(&server, &new).await.unwrap().contains("expired"));
}

#[tokio::test]
async fn the_first_token_is_rotated_in_its_file() {
    let server = TestServer::start().await;
    let (data, old) = (server.data_path(), server.operator_token());
    assert_eq!(succeed(&data, &["operator-token"]), format!("{old}\n"));
    let new = succeed(&data, &["operator", "rotate"]).trim().to_owned();
    assert_eq!(server.operator_token(), new);
    assert_eq!(succeed(&data, &["operator-token"]), format!("{new}\n"));
    let mode = std::fs::metadata(data.join("operator-token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let left = std::fs::read_dir(&data).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with('.')).count(), 0, "it was written aside");
    assert_eq!(refused(&server, &new).await, None);
    assert!(refused(&server, &old).await.is_some());

    // Whoever puts an old file back does not make an old token work again.
    let newest = succeed(&data, &["operator", "rotate"]).trim().to_owned();
    let mut server = server;
    for ended in [&old, &new] {
        std::fs::write(data.join("operator-token"), ended).unwrap();
        server = server.restart().await;
        assert!(refused(&server, ended).await.is_some());
        assert_eq!(refused(&server, &newest).await, None);
    }
}

#[tokio::test]
async fn without_operators_nobody_is_let_in() {
    let server = TestServer::start().await;
    let (data, first) = (server.data_path(), server.operator_token());
    succeed(&data, &["operator", "remove", FIRST]);
    assert_eq!(succeed(&data, &["operator", "list", "--json"]), "[]\n");
    let server = server.restart().await;
    assert!(!data.join("operator-token").exists(), "a start does not bring back what was removed");
    for token in [&*first, "", " ", "x", &token_hash(&first)] {
        assert!(refused(&server, token).await.is_some(), "{token:?}");
    }
    let nobody = server.client().get(server.url("/v1/operator/nodes")).send().await.unwrap();
    assert_eq!(refusal(nobody).await.code, ErrorCode::Unauthenticated);
    let message = fail(&data, &["operator-token"]);
    assert!(message.contains("`operator add NAME` makes a token for another"), "{message}");
    let file = data.join("operator-token");
    std::fs::write(&file, &first).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = server.restart().await;
    assert!(refused(&server, &first).await.is_some(), "it was removed");
    std::fs::write(data.join("operator-token"), "\n").unwrap();
    fail(&data, &["operator-token"]);

    let again = succeed(&data, &["operator", "add", FIRST]);
    assert_eq!(succeed(&data, &["operator-token"]), again);
    assert_eq!(refused(&server, again.trim()).await, None);
}

#[tokio::test]
async fn a_token_that_is_put_into_the_file_counts_from_the_next_start() {
    let server = TestServer::start().await;
    let (file, old) = (server.data_path().join("operator-token"), server.operator_token());
    std::fs::write(&file, "chosen-by-hand\n").unwrap();
    let server = server.restart().await;
    assert_eq!(refused(&server, "chosen-by-hand").await, None);
    assert!(refused(&server, &old).await.is_some());
    // As the manual once told whoever lost a backup.
    std::fs::remove_file(&file).unwrap();
    let server = server.restart().await;
    assert!(refused(&server, "chosen-by-hand").await.is_some());
    assert_eq!(refused(&server, &server.operator_token()).await, None);
}

/// A data folder of the version before operators had names.
#[tokio::test]
async fn the_token_of_an_older_data_folder_goes_on_working() {
    const OLD: &str = "r0H0Nnn6dJ2gpEAW2R8nq9dTZ9n1CjCkwpx0zbdSYwg";
    let make_older = async |server: &TestServer| {
        let store = server.store().await;
        let mut transaction = store.write().await.unwrap();
        for sql in [
            "DROP TABLE operators",
            "DROP TABLE ended_operator_tokens",
            "DELETE FROM _sqlx_migrations WHERE version = 13",
        ] {
            db::query(sql).execute(&mut transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
        store.close().await;
        std::fs::write(server.data_path().join("operator-token"), OLD).unwrap();
    };
    // The server may be the first program of the new version, or a command.
    for commands in [&[][..], &["operator", "list"]] {
        let server = TestServer::start().await;
        let data = server.data_path();
        make_older(&server).await;
        if !commands.is_empty() {
            assert!(succeed(&data, commands).contains("\nfirst "));
        }
        let server = server.restart().await;
        assert_eq!(refused(&server, OLD).await, None);
        assert_eq!(succeed(&data, &["operator-token"]), format!("{OLD}\n"));
    }
}

#[tokio::test]
async fn operators_are_managed_over_https_and_lists_have_no_secrets() {
    let server = TestServer::start().await;
    let call = async |method: Method, path: &str, body: Option<Value>, expect: StatusCode| -> Value {
        let request = server.client().request(method, server.url(&format!("/v1/operator/operators{path}")));
        let request = body.into_iter().fold(request, |request, body| request.json(&body));
        let response = request.bearer_auth(server.operator_token()).send().await.unwrap();
        assert_eq!(response.status(), expect, "{path}");
        let body = response.bytes().await.unwrap();
        if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() }
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let alice = json!({ "name": "alice", "expires_in": 3600 });
    let issued = call(Method::POST, "", Some(alice.clone()), StatusCode::CREATED).await;
    let one = text(&issued["token"]);
    assert!(issued["name"] == "alice" && issued["expires_at"].is_u64(), "{issued}");
    assert_eq!(refused(&server, &one).await, None);
    let refusal = call(Method::POST, "", Some(alice), StatusCode::CONFLICT).await;
    assert!(text(&refusal["message"]).contains("`operator rotate alice`"), "{refusal}");
    for wrong in ["", "a b", "a\nb"] {
        call(Method::POST, "", Some(json!({ "name": wrong })), StatusCode::BAD_REQUEST).await;
    }
    let issued = call(Method::POST, "/alice/rotate?keep=60", None, StatusCode::OK).await;
    let two = text(&issued["token"]);
    assert_eq!((refused(&server, &one).await, refused(&server, &two).await), (None, None));

    let list = call(Method::GET, "", None, StatusCode::OK).await;
    let is_date = |key: &String| key.ends_with("_rfc3339");
    let fields =
        |value: &Value| value.as_object().unwrap().keys().filter(|key| !is_date(key)).cloned().collect::<Vec<_>>();
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&json!("alice"), &json!("first")));
    assert_eq!(fields(&list[0]), ["created_at", "expires_at", "name", "old_until", "used_at"]);
    assert_eq!(fields(&list[1]), ["created_at", "name", "used_at"]);
    let data = server.data_path();
    let lists =
        [list.to_string(), succeed(&data, &["operator", "list"]), succeed(&data, &["operator", "list", "--json"])];
    for secret in [one, two, server.operator_token()] {
        for list in &lists {
            assert!(
                list.contains("alice") && !list.contains(&secret) && !list.contains(&token_hash(&secret)),
                "{list}"
            );
        }
    }

    call(Method::DELETE, "/alice", None, StatusCode::NO_CONTENT).await;
    for (method, path) in [(Method::DELETE, "/alice"), (Method::POST, "/alice/rotate")] {
        let refusal = call(method, path, None, StatusCode::NOT_FOUND).await;
        assert_eq!(refusal["message"], "there is no operator of this name; `operator list` shows them all");
    }
    call(Method::POST, "/first/rotate", None, StatusCode::OK).await;
    // By now, `call` uses the new token.
    call(Method::GET, "", None, StatusCode::OK).await;
}

#[tokio::test]
async fn a_use_is_noted_once_a_day() {
    let server = TestServer::start().await;
    let (store, first) = (server.store().await, server.operator_token());
    let used = async || operate::list_operators(&store).await.unwrap()[0].used_at;
    assert_eq!(used().await, None);
    assert_eq!(refused(&server, &first).await, None);
    let today = used().await.unwrap();
    assert!(today % DAY == 0 && slipway_server::base::time::now() - today < 2 * DAY, "{today}");

    // Further uses do not even wait for the right to write.
    let writing = store.write().await.unwrap();
    for _ in 0..3 {
        assert_eq!(refused(&server, &first).await, None);
    }
    drop(writing);

    let mut transaction = store.write().await.unwrap();
    let yesterday = db::query("UPDATE operators SET used_at = used_at - $1").bind(DAY.cast_signed());
    yesterday.execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(refused(&server, &first).await, None);
    assert!(used().await.unwrap() >= today);
}

#[tokio::test]
async fn guesses_are_paced_and_keep_no_operator_out() {
    let requests = Pace { per_second: 1, burst: 2 };
    let limits = Limits { requests, refusal_pause: std::time::Duration::ZERO, ..Limits::default() };
    let server = TestServer::start_with(limits).await;
    let status = async |token: &str| {
        let request = server.client().get(server.url("/v1/operator/nodes")).bearer_auth(token);
        request.send().await.unwrap().status()
    };
    for expect in [StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(status("guess").await, expect);
    }
    assert_eq!(status(&server.operator_token()).await, StatusCode::OK);
}

#[tokio::test]
async fn the_log_says_which_operator_changed_what() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &["--log-format", "json"]);
    let add = |arguments: &[&str]| succeed(&data, &[&["operator", "add"], arguments].concat()).trim().to_owned();
    let (alice, bob) = (add(&["alice"]), add(&["bob", "--expires", "1s"]));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for arguments in [&["operator", "add", "carol", "--expires", "0s"] as &[&str], &["token", "add", "--expires", "0"]]
    {
        let refused = fail(&data, arguments);
        assert!(refused.contains("a token that expires after no time lets nobody in: give a longer time"), "{refused}");
    }
    let send = async |method: Method, path: &str, token: &str, body: Value| {
        let request = server.client.request(method, format!("{}/v1/operator{path}", server.https));
        request.bearer_auth(token).json(&body).send().await.unwrap().status().as_u16()
    };
    let node = json!({ "name": "web1", "identity": { "uuid": UUID } });
    let bootstrap = succeed(&data, &["token", "add"]).trim().to_owned();
    let requests = [
        (Method::POST, "/nodes", &alice, 201, "/v1/operator/nodes"),
        (Method::POST, "/nodes", &alice, 409, "/v1/operator/nodes"),
        (Method::POST, "/nodes/web1/release", &alice, 200, "/v1/operator/nodes/web1/release"),
        (Method::DELETE, &*format!("/tokens/{bootstrap}"), &alice, 204, "/v1/operator/tokens/{token}"),
        (Method::DELETE, "/nodes/web1", &bob, 401, "/v1/operator/nodes/web1"),
        // Somebody takes a token for the name.
        (Method::DELETE, &*format!("/operators/{bob}"), &alice, 404, "/v1/operator/operators/{operator}"),
    ];
    for (method, path, token, status, _) in &requests {
        assert_eq!(send(method.clone(), path, token, node.clone()).await, *status, "{path}");
    }
    assert_eq!(send(Method::GET, "/nodes", &alice, Value::Null).await, 200);

    let log = std::fs::read_to_string(log).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line)["fields"].clone());
    let (asked, others): (Vec<_>, Vec<_>) = lines.partition(|line| line["message"] == "request of an operator");
    let found: Vec<_> = asked.iter().map(|line| (&line["operator"], &line["path"], &line["status"])).collect();
    let name = |token: &String| if *token == alice { json!("alice") } else { json!("bob") };
    let expect: Vec<_> =
        requests.iter().map(|(_, _, token, status, path)| (name(token), json!(path), json!(status))).collect();
    let expect: Vec<_> = expect.iter().map(|(name, path, status)| (name, path, status)).collect();
    assert_eq!(found, expect, "{log}");
    assert!(asked.iter().all(|line| line["peer"] == "127.0.0.1" && line["method"].is_string()), "{log}");
    let refused: Vec<_> = others.iter().filter(|line| line["message"] == "request refused").collect();
    let found: Vec<_> = refused.iter().map(|line| (&line["operator"], &line["code"])).collect();
    let expect = [("alice", "conflict"), ("bob", "unauthenticated"), ("alice", "not-found")]
        .map(|(name, code)| (json!(name), json!(code)));
    assert_eq!(found, expect.iter().map(|(name, code)| (name, code)).collect::<Vec<_>>(), "{log}");
    for secret in [&alice, &bob, &bootstrap] {
        assert!(!log.contains(secret), "{log}");
    }
}
