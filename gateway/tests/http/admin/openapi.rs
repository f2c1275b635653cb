//! The documented API and the one that is served are the same.

use std::path::Path;

use crate::support::gateway::Gateway;

#[expect(
    clippy::disallowed_methods,
    reason = "how a test is asked to rewrite its expectation"
)]
fn rewrites() -> bool {
    std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1")
}

/// `PACKHORSE_BLESS=1 cargo test -p packhorse-gateway --test http openapi` rewrites the file.
#[tokio::test]
async fn the_checked_in_document_is_the_one_that_is_served() {
    let gateway = Gateway::start().await;
    let served = String::from_utf8(gateway.get("/openapi.json").await.body).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../openapi/gateway.json");
    if rewrites() {
        std::fs::write(&file, &served).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == served,
        "openapi/gateway.json is stale: run this test again with PACKHORSE_BLESS=1"
    );
}
