//! Sessions of browsers: started with a token or a code, as powerful as their owner, and never of use to another site.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{answer::Answer, gateway::Gateway};

const PATH: &str = "/v1/session";
const CSRF: (&str, &str) = ("x-packhorse-csrf", "1");

async fn ask<const N: usize>(
    gateway: &Gateway,
    method: Method,
    path: &str,
    headers: [(&str, &str); N],
    body: Value,
) -> Answer {
    let address = gateway.app.admin_address();
    let body = body.to_string().into_bytes();
    gateway
        .send_with(address, method, path, headers, body)
        .await
}

/// Signs in; the value of the header `cookie`.
async fn sign_in(gateway: &Gateway, body: Value) -> String {
    let answer = ask(gateway, Method::POST, PATH, [], body).await;
    answer.ok(201);
    assert_eq!(answer.headers["cache-control"], "no-store");
    let cookie = answer.headers["set-cookie"].to_str().unwrap();
    let (pair, rest) = cookie.split_once(';').unwrap();
    assert_eq!(rest, " Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
    assert!(pair.starts_with("packhorse_session="));
    pair.to_owned()
}

async fn key(gateway: &Gateway, scopes: Value) -> Value {
    let request = json!({"name": "of a test", "scopes": scopes});
    gateway.post("/v1/keys", &request).await.ok(201)
}

#[tokio::test]
async fn a_session_stands_for_the_admin_token_and_outlives_a_restart() {
    let gateway = Gateway::start().await;
    let token = gateway.token("admin-token");
    let cookie = sign_in(&gateway, json!({"token": token})).await;
    assert!(!cookie.contains(&token));
    let headers = [("cookie", &*cookie)];
    let view = ask(&gateway, Method::GET, PATH, headers, Value::Null)
        .await
        .ok(200);
    assert_eq!(
        (&view["name"], &view["scope"]),
        (&json!("admin"), &json!("admin"))
    );
    assert!(view["expires_at_ms"].as_i64().unwrap() > 0);
    let gateway = gateway.restarted().await;
    ask(&gateway, Method::GET, "/v1/models", headers, Value::Null)
        .await
        .ok(200);
    // Among other cookies, in any order.
    let several = format!("a=b; {cookie}; c=d");
    ask(
        &gateway,
        Method::GET,
        "/v1/models",
        [("cookie", &*several)],
        Value::Null,
    )
    .await
    .ok(200);
}

#[tokio::test]
async fn a_write_with_a_session_needs_a_header_that_other_sites_cannot_send() {
    let gateway = Gateway::start().await;
    let cookie = sign_in(&gateway, json!({"token": gateway.token("admin-token")})).await;
    let body = json!({"policy": "exclusive"});
    let session = ("cookie", &*cookie);
    let refused = ask(&gateway, Method::PUT, "/v1/policy", [session], body.clone()).await;
    assert!(refused.error(403).contains("x-packhorse-csrf"));
    ask(
        &gateway,
        Method::PUT,
        "/v1/policy",
        [session, CSRF],
        body.clone(),
    )
    .await
    .ok(200);
    // A token needs none, for no browser adds it by itself.
    gateway.put("/v1/policy", &body).await.ok(200);
    // The header alone is no right.
    ask(&gateway, Method::PUT, "/v1/policy", [CSRF], body)
        .await
        .error(401);
}

#[tokio::test]
async fn a_session_of_a_key_may_do_what_the_key_may_for_as_long_as_it_is_valid() {
    let gateway = Gateway::start().await;
    let reader = key(&gateway, json!(["read"])).await;
    let cookie = sign_in(&gateway, json!({"token": reader["key"]})).await;
    let session = ("cookie", &*cookie);
    let view = ask(&gateway, Method::GET, PATH, [session], Value::Null)
        .await
        .ok(200);
    assert_eq!(
        (&view["name"], &view["scope"]),
        (&json!("of a test"), &json!("read"))
    );
    ask(&gateway, Method::GET, "/v1/plans", [session], Value::Null)
        .await
        .ok(200);
    let body = json!({"policy": "exclusive"});
    let refused = ask(&gateway, Method::PUT, "/v1/policy", [session, CSRF], body).await;
    assert!(
        refused
            .error(403)
            .contains("a key with the scope read was given")
    );
    // A preview changes nothing.
    ask(
        &gateway,
        Method::POST,
        "/v1/plans/preview",
        [session, CSRF],
        json!({}),
    )
    .await
    .ok(200);

    let path = format!("/v1/keys/{}", reader["id"].as_str().unwrap());
    assert_eq!(gateway.delete(&path).await.status, 204);
    ask(&gateway, Method::GET, "/v1/plans", [session], Value::Null)
        .await
        .error(401);
}

#[tokio::test]
async fn a_code_starts_one_session_of_its_maker() {
    let gateway = Gateway::start().await;
    let reader = key(&gateway, json!(["read"])).await;
    let bearer = format!("Bearer {}", reader["key"].as_str().unwrap());
    let codes = "/v1/session/codes";
    let made = ask(
        &gateway,
        Method::POST,
        codes,
        [("authorization", &*bearer)],
        Value::Null,
    )
    .await;
    let made = made.ok(201);
    assert_eq!(made["expires_in_s"], 60);
    let code = json!({"code": made["code"]});
    let cookie = sign_in(&gateway, code.clone()).await;
    let view = ask(
        &gateway,
        Method::GET,
        PATH,
        [("cookie", &*cookie)],
        Value::Null,
    )
    .await
    .ok(200);
    assert_eq!(view["scope"], "read");
    let again = ask(&gateway, Method::POST, PATH, [], code).await;
    assert!(again.error(401).contains("valid once"));
}

#[tokio::test]
async fn nobody_signs_in_without_a_right_to_read() {
    let gateway = Gateway::start().await;
    let client = key(&gateway, json!(["infer:*"])).await;
    let wrong = [
        (401, json!({"token": "wrong"})),
        (401, json!({"code": "wrong"})),
        (401, json!({"token": gateway.token("agent-token")})),
        (403, json!({"token": client["key"]})),
        (400, json!({})),
        (400, json!({"token": "a", "code": "b"})),
        (400, json!({"password": "a"})),
        (400, json!(["a", null])),
    ];
    for (status, body) in wrong {
        let answer = ask(&gateway, Method::POST, PATH, [], body.clone()).await;
        answer.error(status);
        assert!(!answer.headers.contains_key("set-cookie"), "{body}");
    }
    let token = json!({"token": gateway.token("admin-token")});
    for site in ["cross-site", "same-site"] {
        let headers = [("sec-fetch-site", site)];
        ask(&gateway, Method::POST, PATH, headers, token.clone())
            .await
            .error(403);
    }
    let headers = [("sec-fetch-site", "same-origin")];
    ask(&gateway, Method::POST, PATH, headers, token)
        .await
        .ok(201);
    for cookie in [
        "packhorse_session=",
        "packhorse_session=2.admin.x.9999999999999.x",
        "other=1",
    ] {
        ask(
            &gateway,
            Method::GET,
            "/v1/models",
            [("cookie", cookie)],
            Value::Null,
        )
        .await
        .error(401);
    }
}

#[tokio::test]
async fn signing_out_makes_the_browser_forget_the_cookie() {
    let gateway = Gateway::start().await;
    let answer = ask(&gateway, Method::DELETE, PATH, [], Value::Null).await;
    assert_eq!(answer.status, 204);
    let cookie = answer.headers["set-cookie"].to_str().unwrap();
    assert!(
        cookie.starts_with("packhorse_session=; Path=/; Max-Age=0"),
        "{cookie}"
    );
}

#[tokio::test]
async fn a_signed_out_session_is_of_no_use_to_whoever_has_its_cookie_and_stays_so() {
    let gateway = Gateway::start().await;
    let token = json!({"token": gateway.token("admin-token")});
    let out = sign_in(&gateway, token.clone()).await;
    let other = sign_in(&gateway, token).await;
    let signed_out = [("cookie", &*out)];
    let answer = ask(&gateway, Method::DELETE, PATH, signed_out, Value::Null).await;
    assert_eq!(answer.status, 204);
    let models = "/v1/models";
    ask(&gateway, Method::GET, models, signed_out, Value::Null)
        .await
        .error(401);
    let codes = "/v1/session/codes";
    let headers = [signed_out[0], CSRF];
    ask(&gateway, Method::POST, codes, headers, Value::Null)
        .await
        .error(401);
    let signed_in = [("cookie", &*other)];
    ask(&gateway, Method::GET, models, signed_in, Value::Null)
        .await
        .ok(200);
    let gateway = gateway.restarted().await;
    ask(&gateway, Method::GET, models, signed_out, Value::Null)
        .await
        .error(401);
    ask(&gateway, Method::GET, models, signed_in, Value::Null)
        .await
        .ok(200);
}

#[tokio::test]
async fn a_session_and_a_code_end_with_the_secret_that_started_them() {
    let gateway = Gateway::start().await;
    let admin = key(&gateway, json!(["admin"])).await;
    let path = format!("/v1/keys/{}/rotate", admin["id"].as_str().unwrap());
    let [gone, kept] = [0, 3600];
    let mut secret = admin["key"].clone();
    for (overlap_s, status) in [(kept, 200), (gone, 401)] {
        let token = json!({"token": secret});
        let cookie = sign_in(&gateway, token).await;
        let session = ("cookie", &*cookie);
        let made = ask(
            &gateway,
            Method::POST,
            "/v1/session/codes",
            [session, CSRF],
            Value::Null,
        );
        let code = json!({"code": made.await.ok(201)["code"]});
        let rotated = gateway.post(&path, &json!({"overlap_s": overlap_s})).await;
        secret = rotated.ok(200)["key"].clone();
        // During the overlap the former secret is one of the key, too.
        let used = ask(&gateway, Method::GET, "/v1/models", [session], Value::Null).await;
        assert_eq!(used.status, status, "{overlap_s}");
        let redeemed = ask(&gateway, Method::POST, PATH, [], code).await;
        assert_eq!(redeemed.status == 201, status == 200, "{}", redeemed.text());
    }
    let cookie = sign_in(&gateway, json!({"token": secret})).await;
    ask(
        &gateway,
        Method::GET,
        "/v1/models",
        [("cookie", &*cookie)],
        Value::Null,
    )
    .await
    .ok(200);
}

#[tokio::test]
async fn the_dashboard_learns_the_address_of_grafana() {
    for (flags, expected) in [
        (&[][..], Value::Null),
        (
            &["--grafana-url=http://10.0.0.1:3000/"],
            json!("http://10.0.0.1:3000"),
        ),
    ] {
        let gateway = Gateway::with_flags(flags).await;
        let view = gateway.get("/v1/session").await.ok(200);
        assert_eq!(view["grafana_url"], expected);
    }
}
