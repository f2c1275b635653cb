//! Web pages of other sites, which a browser of the gateway's machine shows: they reach no listener.

use reqwest::Method;

use crate::support::gateway::Gateway;

/// The paths of both listeners that need no credential on loopback, and the status that a client gets there.
const OPEN: [(bool, &str, &str, u16); 7] = [
    (true, "POST", "/v2/models/m/infer", 404),
    (
        true,
        "POST",
        "/v2/systemsharedmemory/region/r/register",
        400,
    ),
    (true, "GET", "/v2/health/live", 200),
    (false, "GET", "/metrics", 200),
    (false, "GET", "/openapi.json", 200),
    (false, "GET", "/", 200),
    (false, "DELETE", "/v1/session", 204),
];

/// Sends a request to each of these paths, and checks that all get this status, or the one for clients.
async fn check(gateway: &Gateway, headers: &[(&str, &str)], status: Option<u16>) {
    for (is_inference, method, path, for_clients) in OPEN {
        let address = if is_inference {
            gateway.app.inference_address()
        } else {
            gateway.app.admin_address()
        };
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let headers = headers.iter().copied();
        let answer = gateway.send_with(address, method, path, headers, Vec::new());
        let answer = answer.await;
        let expected = status.unwrap_or(for_clients);
        assert_eq!(answer.status, expected, "{path}: {}", answer.text());
        if status.is_some() {
            answer.error(expected);
        }
    }
}

#[tokio::test]
async fn a_page_whose_name_leads_to_this_machine_is_answered_nothing() {
    let gateway = Gateway::with_flags(&["--allowed-host=gw.example.com,*.internal"]).await;
    check(&gateway, &[("host", "evil.example.com")], Some(403)).await;
    check(&gateway, &[("host", "gw.example.com:8080")], None).await;
    check(&gateway, &[("host", "a.internal")], None).await;
    check(&gateway, &[("host", "localhost:8080")], None).await;
    check(&gateway, &[], None).await;
}

#[tokio::test]
async fn a_page_of_another_site_sends_no_request_to_either_listener() {
    let gateway = Gateway::start().await;
    let page = ("origin", "http://evil.example.com");
    check(&gateway, &[page], Some(403)).await;
    check(&gateway, &[("sec-fetch-site", "cross-site")], Some(403)).await;
    check(&gateway, &[("sec-fetch-site", "same-origin")], None).await;
    // Its link to the dashboard is followed.
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    let address = gateway.app.admin_address();
    let answer = gateway.send_with(address, Method::GET, "/", link, Vec::new());
    assert_eq!(answer.await.status, 200);
}

#[tokio::test]
async fn a_listener_that_keys_protect_answers_for_every_host_and_one_without_for_the_known_ones() {
    for (keys, expected) in [("required", 401), ("off", 403)] {
        let keys = format!("--inference-keys={keys}");
        let gateway = Gateway::with_flags(&["--listen=0.0.0.0:0", &keys]).await;
        let port = gateway.app.inference_address().port();
        let address = ([127, 0, 0, 1], port).into();
        let host = [("host", "gateway.default.svc.cluster.local:8080")];
        let answer = gateway.send_with(address, Method::GET, "/v2", host, Vec::new());
        answer.await.error(expected);
    }
}
