//! The API's description.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;
use slipway_server::operate;

use crate::support::TestServer;

/// A change to the API changes this file and shows up in review. `UPDATE_GOLDEN=1` rewrites it.
#[tokio::test]
async fn the_api_is_as_described() {
    let server = TestServer::start().await;
    let served = server.client().get(server.url("/v1/openapi.json")).send().await.unwrap();
    let served: serde_json::Value = served.json().await.unwrap();
    let served = serde_json::to_string_pretty(&served).unwrap() + "\n";
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &served).unwrap();
    }
    let golden = std::fs::read_to_string(golden).unwrap_or_default();
    assert!(served == golden, "the API differs from server/openapi.json; if it should, run with UPDATE_GOLDEN=1");
}

/// All values with this key, at any depth.
fn values<'a>(document: &'a Value, key: &str) -> Vec<&'a Value> {
    let below: Vec<&Value> = match document {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    let own = document.get(key).into_iter();
    own.chain(below.into_iter().flat_map(|value| values(value, key))).collect()
}

#[test]
fn every_reference_leads_to_a_schema_and_tags_are_for_people() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let references = values(&document, "$ref");
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    let lists = values(&document["paths"], "tags").into_iter().flat_map(|tags| tags.as_array().unwrap());
    let tags: BTreeSet<&str> = lists.map(|tag| tag.as_str().unwrap()).collect();
    assert_eq!(tags, BTreeSet::from(["files", "installed systems", "machines", "monitoring", "operators"]));
}

/// Every request of a node may meet an operator's decision, and the description says so.
#[tokio::test]
async fn a_node_out_of_service_is_told_so_at_each_request() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let items = document["paths"].as_object().unwrap().iter();
    let operations = items.flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |of| (path, of)));
    let of_nodes = operations.filter(|(_, (_, operation))| operation["security"][0]["node"].is_array());
    let mut count = 0;
    for (path, (method, operation)) in of_nodes {
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let url = server.url(&path.replace("{run}", "r1").replace("{name}", "n1"));
        let answer = node.client.request(method.clone(), url).send().await.unwrap();
        assert_eq!(answer.status(), 410, "{method} {path}: {}", answer.text().await.unwrap());
        assert!(operation["responses"]["410"].is_object(), "{operation}");
        count += 1;
    }
    assert!(count > 5, "{count}");
}

#[tokio::test]
async fn numbers_in_a_query_have_the_bound_of_those_in_a_body() {
    let server = TestServer::start().await;
    for (number, is_taken) in [("0", true), ("3155760000", true), ("3155760001", false), ("-1", false)] {
        let url = server.url(&format!("/v1/operator/operators/first/rotate?keep={number}"));
        let answer = server.client().post(url).bearer_auth(server.operator_token()).send().await.unwrap();
        assert_eq!(answer.status() == 400, !is_taken, "{number}: {}", answer.text().await.unwrap());
    }
}

/// Types with the same name would overwrite each other's schema.
#[test]
fn a_machines_system_is_not_an_operating_system() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let schema = |reference: &Value| document.pointer(&reference.as_str().unwrap()[1..]).unwrap().clone();
    let of_inventory = schema(&document["components"]["schemas"]["Inventory"]["properties"]["system"]["$ref"]);
    assert!(of_inventory["properties"]["vendor"].is_object(), "{of_inventory}");
    let body = &document["paths"]["/v1/operator/os"]["post"]["requestBody"]["content"]["application/json"];
    assert!(schema(&body["schema"]["$ref"])["properties"]["image"].is_object());
}
