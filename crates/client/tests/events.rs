//! Following the events of a gateway that comes and goes.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use packhorse_api::events::{EventKind, EventState};
use packhorse_client::{AdminClient, Authorities, EventMessage, Followed};
use serde_json::json;
use tokio::net::TcpListener;

fn snapshot(id: u64) -> String {
    let policy =
        json!({"policy": "goodput", "options": {}, "discipline": "deadline", "policies": []});
    let total = json!({
        "offered_rps": 0.0, "throughput_rps": 0.0, "goodput_rps": 0.0, "refused_rps": 0.0, "late_rps": 0.0,
    });
    let data = json!({
        "id": id, "at_ms": 1, "models": [], "nodes": [], "plan": null, "policy": policy, "findings": [],
        "goodput": {"window_s": 1.0, "models": [], "total": total},
    });
    format!("id: {id}\nevent: snapshot\ndata: {data}\n\n")
}

fn change(id: u64) -> String {
    let data = json!({
        "id": id, "kind": "node", "at_ms": 1, "subject": {"node": "n"}, "state": "lost", "reason": null, "text": "node n was lost",
    });
    format!("id: {id}\nevent: node\ndata: {data}\n\n")
}

/// Serves these responses one after the other. Returns the address, and the last event ids that clients named.
async fn serve(responses: Vec<(StatusCode, String)>) -> (AdminClient, Arc<Mutex<Vec<String>>>) {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let (seen, next) = (Arc::clone(&ids), Arc::new(AtomicUsize::new(0)));
    let answer = move |headers: HeaderMap| {
        let id = headers.get("last-event-id");
        let id = id.map_or("none", |id| id.to_str().unwrap()).to_owned();
        seen.lock().unwrap().push(id);
        let (status, body) = responses[next.fetch_add(1, Ordering::SeqCst)].clone();
        let headers = [(header::CONTENT_TYPE, "text/event-stream")];
        std::future::ready((status, headers, body).into_response())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new().route("/v1/events", get(answer));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (
        AdminClient::new(url.parse().unwrap(), "t", &Authorities::Machine).unwrap(),
        ids,
    )
}

#[tokio::test]
async fn a_follower_continues_after_its_last_event_and_gives_up_when_it_is_refused() {
    let later = "event: of-a-later-version\ndata: {}\n\n";
    let unavailable = r#"{"error": "the gateway is shutting down"}"#.to_owned();
    let (client, ids) = serve(vec![
        (StatusCode::OK, snapshot(7) + later + &change(8)),
        (StatusCode::SERVICE_UNAVAILABLE, unavailable),
        (StatusCode::OK, change(9)),
        (
            StatusCode::UNAUTHORIZED,
            r#"{"error": "the token is invalid"}"#.to_owned(),
        ),
    ])
    .await;
    let mut follower = client.follow_events(None).await.unwrap();
    let mut told = Vec::new();
    let refused = loop {
        match follower.next().await {
            Ok(Followed::Message(EventMessage::Snapshot(s))) => {
                told.push(format!("snapshot {}", s.id));
            }
            Ok(Followed::Message(EventMessage::Change(event))) => {
                assert_eq!(
                    (event.kind, event.state),
                    (EventKind::Node, EventState::Lost)
                );
                told.push(format!("event {}", event.id));
            }
            Ok(Followed::Message(other)) => panic!("{other:?}"),
            Ok(Followed::Interrupted(_)) => told.push("interrupted".to_owned()),
            Ok(Followed::Resumed) => told.push("resumed".to_owned()),
            Err(refused) => break refused,
        }
    };
    assert_eq!(
        told,
        [
            "snapshot 7",
            "event 8",
            "interrupted",
            "resumed",
            "event 9",
            "interrupted"
        ]
    );
    assert_eq!(refused.to_string(), "the token is invalid");
    assert_eq!(*ids.lock().unwrap(), ["none", "8", "8", "9"]);
}

#[tokio::test]
async fn a_stream_with_other_data_is_an_invalid_response() {
    let body = "event: snapshot\ndata: []\n\n".to_owned();
    let (client, _) = serve(vec![(StatusCode::OK, body)]).await;
    let mut stream = client.events(Some(3)).await.unwrap();
    let error = stream.next().await.unwrap_err().to_string();
    assert!(error.ends_with("cannot be parsed"), "{error}");
    assert_eq!(stream.last_id(), Some(3));
}
