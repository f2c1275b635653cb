//! `packhorse dashboard`.

use serde_json::json;

use packhorse_stand_in::Gateway;

#[tokio::test]
async fn the_address_of_the_dashboard_signs_in_with_a_code() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let code = json!({"code": "0a1b", "expires_in_s": 60});
    gateway
        .answers("POST", "/v1/session/codes", 201, code)
        .await;
    let printed = gateway.run(&["dashboard", "--print"]);
    let text = printed.text();
    let address = text.trim_end();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    assert!(address.ends_with("/#/sign-in?code=0a1b"), "{address}");
    let as_json = gateway.run(&["dashboard", "--json"]).json();
    assert_eq!(as_json, json!({"url": address, "expires_in_s": 60}));
}
