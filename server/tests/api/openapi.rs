//! The API's description.

use std::collections::BTreeSet;

use serde_json::Value;

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
    assert_eq!(tags, BTreeSet::from(["files", "installed systems", "machines", "operators"]));
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
