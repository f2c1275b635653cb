//! The answer of every route to every role: a route of the document without a row here fails the test.

use std::{collections::BTreeMap, net::SocketAddr};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{client, gateway::Gateway, within};

/// The status of a request without a body to each documented route, by role.
///
/// `unknown` are all without a valid credential, `client` is a key for inference, `reader` one with the scope `read`; `admin` are the admin token and a
/// key with the scope `admin`. `agent` has the agents' common token and acts for a node without a token of its own, `node` has the token of its node, and
/// `other` the same token on the paths of another node. Sessions are as powerful as their owners.
const ADMIN: &str = "
                                         unknown client reader admin agent node other
GET    /metrics                          200     200    200    200   200   200  200
GET    /v1/agents/{node}/wanted          401     403    403    409   409   409  403
PUT    /v1/agents/{node}/lease           401     403    403    400   400   400  403
PUT    /v1/agents/{node}/status          401     403    403    400   400   400  403
GET    /v1/artifacts                     401     403    200    200   403   403  403
GET    /v1/artifacts/{digest}            401     403    403    404   404   404  404
PUT    /v1/artifacts/{digest}            401     403    403    400   403   403  403
GET    /v1/audit                         401     403    200    200   403   403  403
GET    /v1/backup                        401     403    403    200   403   403  403
GET    /v1/events                        401     403    200    200   403   403  403
GET    /v1/findings                      401     403    200    200   403   403  403
GET    /v1/goodput                       401     403    200    200   403   403  403
GET    /v1/history                       401     403    200    200   403   403  403
GET    /v1/incidents                     401     403    200    200   403   403  403
GET    /v1/keys                          401     403    200    200   403   403  403
POST   /v1/keys                          401     403    403    400   403   403  403
DELETE /v1/keys/{id}                     401     403    403    404   403   403  403
GET    /v1/keys/{id}                     401     403    404    404   403   403  403
PATCH  /v1/keys/{id}                     401     403    403    400   403   403  403
POST   /v1/keys/{id}/rotate              401     403    403    400   403   403  403
GET    /v1/models                        401     403    200    200   403   403  403
POST   /v1/models                        401     403    403    400   403   403  403
DELETE /v1/models/{name}                 401     403    403    404   403   403  403
GET    /v1/models/{name}                 401     403    404    404   403   403  403
PATCH  /v1/models/{name}                 401     403    403    400   403   403  403
POST   /v1/models/{name}/promote         401     403    403    400   403   403  403
POST   /v1/models/{name}/rollback        401     403    403    404   403   403  403
POST   /v1/models/{name}/try             401     403    403    404   403   403  403
GET    /v1/nodes                         401     403    200    200   403   403  403
DELETE /v1/nodes/{node}                  401     403    403    404   403   403  403
POST   /v1/nodes/{node}/cordon           401     403    403    404   403   403  403
POST   /v1/nodes/{node}/drain            401     403    403    404   403   403  403
POST   /v1/nodes/{node}/token            401     403    403    201   403   403  403
POST   /v1/nodes/{node}/uncordon         401     403    403    404   403   403  403
GET    /v1/plan                          401     403    404    404   403   403  403
GET    /v1/plan/scenario                 401     403    200    200   403   403  403
GET    /v1/plans                         401     403    200    200   403   403  403
POST   /v1/plans/preview                 401     403    400    400   403   403  403
GET    /v1/plans/{before}/diff/{after}   401     403    404    404   403   403  403
GET    /v1/plans/{generation}            401     403    404    404   403   403  403
GET    /v1/policy                        401     403    200    200   403   403  403
PUT    /v1/policy                        401     403    403    400   403   403  403
GET    /v1/profiles                      401     403    200    200   403   403  403
PUT    /v1/profiles                      401     403    403    400   403   403  403
GET    /v1/profiles/kernels              401     403    400    400   403   403  403
GET    /v1/profiles/learned              401     403    400    400   403   403  403
GET    /v1/profiles/pairs                401     403    400    400   403   403  403
PUT    /v1/profiles/pairs                401     403    403    400   403   403  403
PUT    /v1/repository/problems           401     403    403    400   403   403  403
GET    /v1/requests                      401     403    200    200   403   403  403
GET    /v1/requests/{number}             401     403    404    404   403   403  403
DELETE /v1/session                       204     204    204    204   204   204  204
GET    /v1/session                       401     403    200    200   403   403  403
POST   /v1/session                       400     400    400    400   400   400  400
POST   /v1/session/codes                 401     403    201    201   403   403  403
GET    /v1/trace                         401     403    200    200   403   403  403
";

/// The same for the inference listener, which knows API keys only, where it requires them. `client` may use all models, `other` none with these names.
const INFERENCE: &str = "
                                                   unknown client other reader
GET    /health                                     503     503    503   503
POST   /invocations                                401     404    403   403
GET    /ping                                       503     503    503   503
POST   /predict                                    401     404    403   403
POST   /tei/{model}                                401     400    403   403
POST   /tei/{model}/embed                          401     400    403   403
GET    /tei/{model}/health                         401     404    403   403
GET    /tei/{model}/info                           401     404    403   403
POST   /tei/{model}/predict                        401     400    403   403
POST   /tei/{model}/rerank                         401     400    403   403
POST   /v1/embeddings                              401     400    400   400
POST   /v1/models/{model}:predict                  401     404    403   403
GET    /v2                                         401     200    200   403
GET    /v2/health/live                             200     200    200   200
GET    /v2/health/ready                            200     200    200   200
GET    /v2/models/stats                            401     200    200   403
GET    /v2/models/{model}                          401     404    403   403
GET    /v2/models/{model}/config                   401     404    403   403
POST   /v2/models/{model}/infer                    401     404    403   403
GET    /v2/models/{model}/ready                    401     404    403   403
GET    /v2/models/{model}/stats                    401     404    403   403
GET    /v2/models/{model}/versions/{version}       401     404    403   403
GET    /v2/models/{model}/versions/{version}/config 401    404    403   403
POST   /v2/models/{model}/versions/{version}/infer 401     404    403   403
GET    /v2/models/{model}/versions/{version}/ready 401     404    403   403
GET    /v2/models/{model}/versions/{version}/stats 401     404    403   403
POST   /v2/repository/index                        401     200    200   403
POST   /v2/rerank                                  401     400    400   400
POST   /v2/systemsharedmemory/region/{region}/register   401 400  400   403
GET    /v2/systemsharedmemory/region/{region}/status     401 400  400   403
POST   /v2/systemsharedmemory/region/{region}/unregister 401 400  400   403
GET    /v2/systemsharedmemory/status               401     400    400   403
POST   /v2/systemsharedmemory/unregister           401     400    400   403
";

/// Headers of a request.
type Headers = Vec<(&'static str, String)>;

/// A holder of a credential, or of none.
struct Caller {
    /// The column of its role.
    role: &'static str,
    what: &'static str,
    headers: Headers,
    /// The node whose paths it asks for.
    node: &'static str,
}

fn caller(role: &'static str, what: &'static str, headers: Headers) -> Caller {
    let node = what.split(' ').next().unwrap();
    Caller {
        role,
        what,
        headers,
        node,
    }
}

fn bearer(token: &str) -> Headers {
    vec![("authorization", format!("Bearer {token}"))]
}

/// The statuses of a table, by route and role.
fn rows(table: &str) -> BTreeMap<(String, String), BTreeMap<String, u16>> {
    let mut lines = table.lines().filter(|line| !line.is_empty());
    let roles: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let rows = lines.map(|line| {
        let mut words = line.split_whitespace().map(ToOwned::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let statuses: Vec<u16> = words.map(|word| word.parse().unwrap()).collect();
        assert_eq!(statuses.len(), roles.len(), "{line}");
        let roles = roles.iter().map(|role| (*role).to_owned());
        ((path, method), roles.zip(statuses).collect())
    });
    rows.collect()
}

/// The documented routes of the listener for clients, or of that for admins.
async fn documented(gateway: &Gateway, for_clients: bool) -> Vec<(String, String)> {
    let document = gateway.get("/openapi.json").await.ok(200);
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let operations = item.as_object().unwrap().iter();
        for (method, operation) in operations.filter(|(_, item)| item["tags"].is_array()) {
            if (operation["tags"][0] == "inference") == for_clients {
                routes.push((path.clone(), method.to_uppercase()));
            }
        }
    }
    routes
}

/// The path of a route, with something in place of its parameters.
fn concrete(path: &str, node: &str) -> String {
    let path = path
        .replace("{node}", node)
        .replace("{digest}", &format!("sha256:{}", "0".repeat(64)))
        .replace("{id}", "00000000");
    let number = [
        "{number}",
        "{generation}",
        "{before}",
        "{after}",
        "{version}",
    ];
    let path = number
        .iter()
        .fold(path, |path, name| path.replace(name, "1"));
    let name = ["{name}", "{model}", "{region}"];
    name.iter().fold(path, |path, name| path.replace(name, "x"))
}

impl Gateway {
    async fn new_key(&self, scopes: Value) -> Value {
        let request = json!({"name": "of a test", "scopes": scopes});
        self.post("/v1/keys", &request).await.ok(201)
    }

    async fn bearer_of(&self, scopes: Value) -> Headers {
        bearer(self.new_key(scopes).await["key"].as_str().unwrap())
    }

    /// Signs in; the headers of a request that may change something.
    async fn session(&self, token: &str) -> Headers {
        let body = json!({"token": token}).to_string();
        let address = self.app.admin_address();
        let answer = self
            .send(address, Method::POST, "/v1/session", None, body.into())
            .await;
        answer.ok(201);
        let cookie = answer.headers["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        vec![("cookie", cookie), ("x-packhorse-csrf", "1".to_owned())]
    }
}

/// Sends a request, and returns the status of the answer, whose body may have no end.
async fn status(url: &str, method: &str, headers: &Headers) -> u16 {
    // There is one backup and one trace at a time, whose place is free a moment after it has been read.
    let is_alone = url.ends_with("/v1/backup") || url.ends_with("/v1/trace");
    let answered = async {
        loop {
            let answer = send(url, method, headers).await;
            let status = answer.status().as_u16();
            if !is_alone {
                return status;
            }
            answer.bytes().await.unwrap();
            if status != 503 {
                return status;
            }
        }
    };
    within(url, answered).await
}

async fn send(url: &str, method: &str, headers: &Headers) -> reqwest::Response {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = client().request(method, url);
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, value)
    });
    let answer = request.send().await.unwrap();
    if answer.status() == 401 {
        assert_eq!(answer.headers()["www-authenticate"], "Bearer");
    }
    answer
}

/// Sends a caller's request to a route, and returns what is wrong with the answer: it has another status than the table.
async fn difference(
    listener: SocketAddr,
    (path, method): &(String, String),
    caller: &Caller,
    statuses: &BTreeMap<String, u16>,
) -> Option<String> {
    let url = format!("http://{listener}{}", concrete(path, caller.node));
    let found = status(&url, method, &caller.headers).await;
    let expected = statuses[caller.role];
    let what = caller.what;
    (found != expected).then(|| format!("{method} {path} {what}: {found}, not {expected}"))
}

#[tokio::test]
async fn every_route_answers_every_role_as_the_table_says() {
    let gateway = Gateway::start().await;
    let (admin, agent) = (gateway.token("admin-token"), gateway.token("agent-token"));
    let reader = gateway.new_key(json!(["read", "infer:*"])).await;
    let reader = reader["key"].as_str().unwrap();
    let made = gateway.post("/v1/nodes/own/token", &Value::Null).await;
    let node = bearer(made.ok(201)["token"].as_str().unwrap());
    let rotated = gateway.new_key(json!(["admin"])).await;
    let rotate = format!("/v1/keys/{}/rotate", rotated["id"].as_str().unwrap());
    let of_rotated = gateway.session(rotated["key"].as_str().unwrap()).await;
    gateway
        .post(&rotate, &json!({"overlap_s": 0}))
        .await
        .ok(200);
    let rotated = rotated["key"].as_str().unwrap();
    let signed_out = gateway.session(&admin).await;
    let sign_out = format!("http://{}/v1/session", gateway.app.admin_address());
    assert_eq!(status(&sign_out, "DELETE", &signed_out).await, 204);
    let mut with_wrong_cookie = gateway.session(&admin).await;
    with_wrong_cookie[0].1.push('x');
    let callers = [
        caller("unknown", "nobody", vec![]),
        caller("unknown", "wrong token", bearer("wrong")),
        caller("unknown", "cut admin token", bearer(&admin[1..])),
        caller(
            "unknown",
            "no scheme",
            vec![("authorization", admin.clone())],
        ),
        caller("unknown", "changed session", with_wrong_cookie),
        caller("unknown", "rotated key", bearer(rotated)),
        caller("unknown", "session of a rotated key", of_rotated),
        caller("unknown", "signed-out session", signed_out),
        caller(
            "client",
            "client",
            gateway.bearer_of(json!(["infer:*"])).await,
        ),
        caller("reader", "reader", bearer(reader)),
        caller("admin", "admin token", bearer(&admin)),
        caller(
            "admin",
            "key of an admin",
            gateway.bearer_of(json!(["admin"])).await,
        ),
        caller("agent", "agent", bearer(&agent)),
        caller("node", "own node", node.clone()),
        caller("other", "another node", node),
    ];
    let table = rows(ADMIN);
    let routes = documented(&gateway, false).await;
    assert_eq!(routes, table.keys().cloned().collect::<Vec<_>>());
    let address = gateway.app.admin_address();
    let mut wrong = Vec::new();
    for (route, statuses) in &table {
        for caller in &callers {
            wrong.extend(difference(address, route, caller, statuses).await);
        }
        // A session may be signed out.
        for (role, token) in [("admin", &*admin), ("reader", reader)] {
            let caller = caller(role, "of-session", gateway.session(token).await);
            wrong.extend(difference(address, route, &caller, statuses).await);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn every_route_for_clients_answers_every_key_as_the_table_says() {
    let platforms = "--platform=kserve-v1,sagemaker=x,vertex=x";
    let gateway = Gateway::with_flags(&["--inference-keys=required", platforms]).await;
    let (admin, agent) = (gateway.token("admin-token"), gateway.token("agent-token"));
    let session = gateway.session(&admin).await;
    let callers = [
        caller("unknown", "nobody", vec![]),
        caller("unknown", "wrong key", bearer("phk_00000000_x")),
        caller("unknown", "admin token", bearer(&admin)),
        caller("unknown", "agent token", bearer(&agent)),
        caller("unknown", "session", session),
        caller(
            "client",
            "client",
            gateway.bearer_of(json!(["infer:*"])).await,
        ),
        caller(
            "other",
            "client of others",
            gateway.bearer_of(json!(["infer:y*"])).await,
        ),
        caller("reader", "reader", gateway.bearer_of(json!(["read"])).await),
        caller(
            "reader",
            "key of an admin",
            gateway.bearer_of(json!(["admin"])).await,
        ),
    ];
    let table = rows(INFERENCE);
    let routes = documented(&gateway, true).await;
    assert_eq!(routes, table.keys().cloned().collect::<Vec<_>>());
    let address = gateway.app.inference_address();
    let mut wrong = Vec::new();
    for (route, statuses) in &table {
        for caller in &callers {
            wrong.extend(difference(address, route, caller, statuses).await);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_parameter_that_a_route_does_not_take_is_refused_by_its_name() {
    let gateway = Gateway::start().await;
    let admin = bearer(&gateway.token("admin-token"));
    let listener = gateway.app.admin_address();
    // Agents of other versions may send more.
    let is_checked = |path: &str| {
        !["/v1/agents", "/v1/session", "/v1/artifacts/"]
            .iter()
            .any(|of| path.starts_with(of))
    };
    let mut routes = documented(&gateway, false).await;
    routes.retain(|(path, _)| path.starts_with("/v1/"));
    let mut checked = 0;
    for (path, method) in routes.into_iter().filter(|(path, _)| is_checked(path)) {
        let route = format!("{method} {path}");
        let url = format!("http://{listener}{}?slo_mss=1", concrete(&path, "node"));
        assert_eq!(
            send(&url, &method, &Vec::new()).await.status(),
            401,
            "{route}"
        );
        let answer = send(&url, &method, &admin).await;
        assert_eq!(answer.status(), 400, "{route}");
        let error = answer.json::<Value>().await.unwrap();
        let error = error["error"].as_str().unwrap().to_owned();
        let expected = format!("query: there is no parameter `slo_mss`: {route} takes ");
        assert!(error.starts_with(&expected), "{error}");
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
    let known = gateway.get("/v1/events?limit=1&sinc=1").await;
    let text = known.ok(400)["error"].to_string();
    assert!(text.contains("`sinc`") && text.contains("limit"), "{text}");
}
