//! Each route for nodes and operators in the API's description, with each credential. The routes for tokens of runs,
//! which read the report first, have tests of their own.

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use slipway_protocol::ErrorCode;
use slipway_server::base::limits::{Limits, Pace};
use slipway_server::operate;
use slipway_server::store::run_tokens::Purpose;

use crate::support::{Machine, Node, TestServer, UUID, refusal};
use crate::work::new_run;

const REBOOT: &str = "steps:\n- {name: leave, action: {reboot: {}}}\n";

/// How a caller shows who it is.
struct Caller {
    name: &'static str,
    /// Its TLS certificate.
    client: Client,
    /// The token in its header.
    bearer: Option<String>,
    /// The kind of credential in the description that this is.
    kind: &'static str,
}

#[tokio::test]
async fn each_route_takes_the_credentials_that_it_says_and_no_others() {
    // All guesses come from one address, within one second.
    let requests = Pace { per_second: 10_000, burst: 10_000 };
    let server = TestServer::start_with(Limits { requests, ..Limits::default() }).await;
    let document: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let callers = callers(&server).await;
    let mut closed = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(security) = operation["security"].as_array() else { continue };
            let kind = security[0].as_object().unwrap().keys().next().unwrap();
            if kind == "run" {
                continue;
            }
            closed += 1;
            for caller in &callers {
                let may = caller.kind == kind;
                let status = call(&server, caller, method, path).await;
                let refused = status == StatusCode::UNAUTHORIZED;
                assert_eq!(refused, !may, "{method} {path} with {}: {status}", caller.name);
            }
        }
    }
    assert!(closed > 35, "the description has {closed} routes that ask for a credential");
}

/// Sends a request with nothing useful in it. Returns the status of the answer.
async fn call(server: &TestServer, caller: &Caller, method: &str, path: &str) -> StatusCode {
    // Placeholders become names that nothing has.
    let path = path.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
    let path = path.collect::<Vec<_>>().join("/");
    let method: Method = method.to_uppercase().parse().unwrap();
    let wait = if path.ends_with("/workflow") { "?wait=0" } else { "" };
    let request = caller.client.request(method, server.url(&format!("{path}{wait}")));
    let request = caller.bearer.iter().fold(request, |request, token| request.bearer_auth(token));
    let answer = request.send().await.unwrap();
    let status = answer.status();
    if status == StatusCode::UNAUTHORIZED {
        assert_eq!(refusal(answer).await.code, ErrorCode::Unauthenticated, "{path} with {}", caller.name);
    }
    status
}

async fn callers(server: &TestServer) -> Vec<Caller> {
    let store = server.store().await;
    let before = server.enrolled("web1").await;
    operate::start_run(&store, &server.ca(), "web1", new_run(REBOOT)).await.unwrap();
    // Another machine is the node from now on, because an operator said so.
    let now = Machine::with_uuid(UUID);
    let wait: slipway_protocol::Wait = now.try_enrol(server).await.json().await.unwrap();
    operate::release_node(&store, &wait.claim_code, None).await.unwrap();
    let now = Node::enrol(server, now).await;
    let run_token = async |purpose| operate::add_run_token(&store, "web1", purpose).await.unwrap().0;
    let bootstrap = operate::add_token(&store, Some("web1"), None).await.unwrap().token;
    let removed = operate::add_operator(&store, &server.data(), "bob", None).await.unwrap().token;
    operate::remove_operator(&store, &server.data(), "bob").await.unwrap();

    let with =
        |name, bearer: &str, kind| Caller { name, client: server.client(), bearer: Some(bearer.to_owned()), kind };
    let certificate = |name, node: &Node, kind| Caller { name, client: node.client.clone(), bearer: None, kind };
    vec![
        Caller { name: "nothing", client: server.client(), bearer: None, kind: "none" },
        with("a wrong token", "wrong", "none"),
        with("a bootstrap token", &bootstrap, "none"),
        with("a token for steps", &run_token(Purpose::Steps).await, "none"),
        with("a token of the boot reporter", &run_token(Purpose::Boot).await, "none"),
        with("the token of an operator", &server.operator_token(), "operator"),
        with("the token of an operator who was removed", &removed, "none"),
        with("the JWT of the node", &now.enrolment.jwt, "node"),
        with("the JWT of the machine before", &before.enrolment.jwt, "none"),
        certificate("the certificate of the node", &now, "node"),
        certificate("the certificate of the machine before", &before, "none"),
    ]
}
