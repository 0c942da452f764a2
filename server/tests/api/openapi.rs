//! The API's description.

use crate::support::TestServer;

/// A change to the API changes this file, and is seen in review. `UPDATE_GOLDEN=1` writes it anew.
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
