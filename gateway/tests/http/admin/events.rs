//! `/v1/events` and `/v1/findings`.

use std::time::Duration;

use packhorse_api::events::{
    Cure, EventKind, EventObject, EventState, EventView, Finding, Severity, Snapshot, Subject,
};
use packhorse_gateway::{events::NewEvent, store::Store};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::support::{
    agent::Agent,
    event_reader::{EventReader, StreamedEvent},
    gateway::{Gateway, registration},
    poll, within,
};

/// An event whose text has this many bytes.
fn drift(text: &str, padding: usize) -> NewEvent {
    NewEvent {
        kind: EventKind::Drift,
        subject: Some(Subject::Model("m".parse().unwrap())),
        state: EventState::Rate,
        reason: None,
        text: format!("{text}{}", ".".repeat(padding)),
        object: None,
    }
}

/// Waits until an event with this text is stored, and returns its number.
async fn stored(gateway: &Gateway, text: &str) -> u64 {
    poll("storing", async || {
        let events = gateway.get("/v1/events?follow=false&limit=5").await;
        let events = events.ok(200);
        let found = events.as_array().unwrap().iter().find(|e| {
            let found = e["text"].as_str().unwrap();
            found.trim_end_matches('.') == text
        });
        found.map(|e| e["id"].as_u64().unwrap()).ok_or(events)
    })
    .await
}

fn without_ages(mut nodes: Value) -> Value {
    for node in nodes.as_array_mut().unwrap() {
        node["last_seen_ms"] = Value::Null;
    }
    nodes
}

#[tokio::test]
async fn a_stream_begins_with_everything_and_continues_with_what_changes() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("first").await;
    agent.work_until_ready(&gateway, "first").await;

    let mut reader = EventReader::open(&gateway, "", None).await;
    let snapshot = reader.next().await.unwrap();
    assert_eq!(snapshot.name, "snapshot");
    assert_eq!(snapshot.id, snapshot.data["id"].as_u64());
    for (part, route) in [
        ("models", "/v1/models"),
        ("plan", "/v1/plan"),
        ("policy", "/v1/policy"),
        ("findings", "/v1/findings"),
    ] {
        assert_eq!(snapshot.data[part], gateway.get(route).await.ok(200));
    }
    let nodes = gateway.get("/v1/nodes").await.ok(200);
    assert_eq!(
        without_ages(snapshot.data["nodes"].clone()),
        without_ages(nodes)
    );
    assert_eq!(snapshot.data["goodput"]["models"][0]["name"], "first");
    let _: Snapshot = serde_json::from_value(snapshot.data).unwrap();

    gateway.register("second").await;
    // The event of its registration, not of the plan that it leads to, comes first.
    let mut event = reader.named("model").await;
    while event.data["subject"]["model"] != "second:1" {
        event = reader.named("model").await;
    }
    assert_eq!(event.id, event.data["id"].as_u64());
    assert_eq!(event.data["kind"], "model");
    assert_eq!(event.data["state"], event.data["object"]["state"]);
    let text = event.data["text"].as_str().unwrap();
    assert!(text.starts_with("model second:1 is "), "{text}");
    assert_eq!(event.data["object"]["name"], "second");

    gateway.delete("/v1/models/second").await;
    let mut event = reader.named("model").await;
    while event.data["state"] != "removed" {
        event = reader.named("model").await;
    }
    assert_eq!(event.data["subject"], json!({"model": "second:1"}));
    assert!(event.data.get("object").is_none(), "{event:?}");
    let _: EventView = serde_json::from_value(event.data).unwrap();
}

#[tokio::test]
async fn nodes_and_plans_are_told() {
    let gateway = Gateway::with_flags(&["--lease-ms=300"]).await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let joined = reader.named("node").await.data;
    assert_eq!(
        (&joined["text"], &joined["state"]),
        (
            &json!("node n: takes replicas on 1 device"),
            &json!("ready")
        )
    );
    assert_eq!(joined["object"]["devices"][0]["id"], "n/sim0");
    let joined: EventView = serde_json::from_value(joined).unwrap();
    assert!(matches!(joined.object, Some(EventObject::Node(_))));
    let mut plan = reader.named("plan").await.data;
    while plan["state"] != "adopted" || plan["object"]["replicas"] == json!([]) {
        plan = reader.named("plan").await.data;
    }
    assert_eq!(plan["state"], "adopted");
    assert_eq!(plan["object"], gateway.get("/v1/plan").await.ok(200));
    let plan: EventView = serde_json::from_value(plan).unwrap();
    assert!(matches!(plan.object, Some(EventObject::Plan(_))));
    drop(agent);
    let lost = reader.named("node").await.data;
    assert_eq!(
        (&lost["subject"], &lost["state"]),
        (&json!({"node": "n"}), &json!("lost"))
    );
}

#[tokio::test]
async fn every_second_has_its_goodput() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    gateway.register("m").await;
    let mut goodput = reader.named("goodput").await;
    while goodput.data["models"] == json!([]) {
        goodput = reader.named("goodput").await;
    }
    assert_eq!(goodput.id, None);
    assert_eq!(goodput.data["window_s"], 1.0);
    assert_eq!(goodput.data["models"][0]["refused_rps"], 0.0);
    let total = json!({
        "offered_rps": 0.0, "throughput_rps": 0.0, "goodput_rps": 0.0, "refused_rps": 0.0, "late_rps": 0.0, "failed_rps": 0.0,
    });
    assert_eq!(goodput.data["total"], total);
    let stored = gateway.get("/v1/events?follow=false").await.ok(200);
    let mut stored = stored.as_array().unwrap().iter();
    assert!(stored.all(|event| event["kind"] != "goodput"), "{stored:?}");
}

#[tokio::test]
async fn a_client_reads_on_after_a_restart_of_the_gateway() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    gateway.app.events().append(drift("one", 0));
    while reader.change().await.unwrap().data["text"] != "one" {}
    let last = reader.last_id.unwrap();
    // Appended, and at most about to be stored, when the gateway stops.
    gateway.app.events().append(drift("two", 0));
    gateway.app.events().append(drift("three", 0));
    let gateway = gateway.restarted().await;

    let mut reader = EventReader::open(&gateway, "", Some(last)).await;
    gateway.app.events().append(drift("four", 0));
    let mut told = Vec::new();
    while told.last().is_none_or(|(_, text)| text != "four") {
        let event = reader.change().await.unwrap();
        assert_ne!(event.name, "snapshot");
        told.push((
            event.id.unwrap(),
            event.data["text"].as_str().unwrap().to_owned(),
        ));
    }
    let ids: Vec<u64> = told.iter().map(|(id, _)| *id).collect();
    assert_eq!(
        ids,
        (last + 1..=last + told.len() as u64).collect::<Vec<_>>()
    );
    let texts: Vec<&str> = told.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts[..2], ["two", "three"], "{texts:?}");
}

#[tokio::test]
async fn a_crash_uses_no_number_again_that_anybody_has_seen() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    gateway.app.events().append(drift("seen", 0));
    while reader.change().await.unwrap().data["text"] != "seen" {}
    let seen = reader.last_id.unwrap();
    // A copy of the files as they are now is what a crash would leave.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["packhorse.db", "packhorse.db-wal"] {
        let from = gateway.folder.path().join("state").join(name);
        std::fs::copy(from, crashed.path().join(name)).unwrap();
    }
    let store = Store::open(&crashed.path().join("packhorse.db")).await;
    let sizes = store.unwrap().event_sizes().await.unwrap();
    assert!(sizes.last().unwrap().0 >= seen, "{sizes:?}, {seen}");
}

#[tokio::test]
async fn a_client_that_has_missed_too_much_gets_a_new_snapshot() {
    let gateway = Gateway::start().await;
    gateway.app.events().append(drift("first", 0));
    let first = stored(&gateway, "first").await;
    for since in [first + 1000, u64::MAX] {
        let query = format!("?since={since}");
        let mut reader = EventReader::open(&gateway, &query, None).await;
        assert_eq!(reader.change().await.unwrap().name, "snapshot", "{since}");
    }
    for batch in 0..3 {
        // The queue of appended events holds some more.
        for _ in 0..3400 {
            gateway.app.events().append(drift("more", 0));
        }
        gateway
            .app
            .events()
            .append(drift(&format!("batch {batch}"), 0));
        stored(&gateway, &format!("batch {batch}")).await;
    }
    let query = format!("?since={first}");
    let mut reader = EventReader::open(&gateway, &query, None).await;
    assert_eq!(reader.change().await.unwrap().name, "snapshot");
    let all = gateway.get("/v1/events?follow=false&limit=10000").await;
    let all = all.ok(200);
    let ids = all.as_array().unwrap().iter().map(|e| &e["id"]);
    let ids: Vec<u64> = ids.map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 10_000);
    assert!(ids.is_sorted());
    let query = format!("?since={}", ids[0]);
    let mut reader = EventReader::open(&gateway, &query, None).await;
    assert_eq!(reader.change().await.unwrap().id, Some(ids[1]));
}

#[tokio::test]
async fn events_wait_while_the_database_fails_and_none_is_lost() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    let mut before = reader.change().await.unwrap();
    gateway.app.events().append(drift("before", 0));
    while before.data["text"] != "before" {
        before = reader.change().await.unwrap();
    }
    let file = gateway.folder.path().join("state/packhorse.db");
    let url = format!("sqlite://{}", file.display());
    let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let rename = "ALTER TABLE events RENAME TO gone";
    database.execute(rename).await.unwrap();
    gateway.app.events().append(drift("one", 0));
    gateway.app.events().append(drift("two", 0));
    // More than a second passes, in which the events are tried to be stored.
    for _ in 0..3 {
        assert_eq!(reader.next().await.unwrap().name, "goodput");
    }
    let back = "ALTER TABLE gone RENAME TO events";
    database.execute(back).await.unwrap();
    for (text, number) in [("one", 1), ("two", 2)] {
        let event = reader.change().await.unwrap();
        assert_eq!(event.data["text"], text);
        assert_eq!(event.id, before.id.map(|id| id + number));
    }
}

#[tokio::test]
async fn a_flood_of_events_leaves_a_gap_and_nobody_reads_across_it() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    gateway.app.events().append(drift("calm", 0));
    while reader.change().await.unwrap().data["text"] != "calm" {}
    // More than the queue of appended events holds. The task that empties it does not run before this test waits.
    for _ in 0..6000 {
        gateway.app.events().append(drift("flood", 0));
    }
    while reader.change().await.is_some() {}
    let last = reader.last_id;
    let mut reader = EventReader::open(&gateway, "", last).await;
    let snapshot = reader.change().await.unwrap();
    assert_eq!(snapshot.name, "snapshot");
    gateway.app.events().append(drift("after", 0));
    let mut event = snapshot;
    while event.data["text"] != "after" {
        let next = reader.change().await.unwrap();
        assert_eq!(next.id, event.id.map(|id| id + 1));
        event = next;
    }
    assert!(event.id.unwrap() > 6000, "{event:?}");
}

#[tokio::test]
async fn an_id_in_the_header_counts_more_than_one_in_the_query() {
    let gateway = Gateway::start().await;
    for text in ["one", "two", "three"] {
        gateway.app.events().append(drift(text, 0));
    }
    let three = stored(&gateway, "three").await;
    let mut reader = EventReader::open(&gateway, "?since=0", Some(three - 1)).await;
    assert_eq!(reader.change().await.unwrap().id, Some(three));
    for (path, message) in [
        (
            "/v1/events?follow=false&limit=0",
            "limit: expected 1 to 10000",
        ),
        ("/v1/events?since=x", "invalid digit"),
        (
            "/v1/events?until=1",
            "there is no parameter `until`: GET /v1/events takes follow, limit, since",
        ),
    ] {
        let error = gateway.get(path).await.error(400);
        assert!(error.contains(message), "{error}");
    }
}

/// Opens the stream on a connection of its own with a small receive buffer, and reads nothing.
async fn open_and_ignore(gateway: &Gateway, since: u64) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(gateway.app.admin_address()).await.unwrap();
    let token = gateway.token("admin-token");
    let head = format!(
        "GET /v1/events?since={since} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The head of the answer, so that the stream is open.
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    stream
}

/// Appends 1 MiB.
async fn append_mebibyte(gateway: &Gateway, number: usize) {
    for _ in 0..15 {
        gateway.app.events().append(drift("padding", 65_536));
    }
    let text = format!("mebibyte {number}");
    gateway.app.events().append(drift(&text, 65_536));
    stored(gateway, &text).await;
}

#[tokio::test]
async fn a_client_that_is_too_slow_is_disconnected_and_reads_on() {
    let gateway = Gateway::start().await;
    let begin = gateway.get("/v1/events?follow=false").await.ok(200);
    let begin = begin
        .as_array()
        .unwrap()
        .last()
        .map_or(0, |e| e["id"].as_u64().unwrap());
    let mut slow = open_and_ignore(&gateway, begin).await;
    let mut quick = EventReader::open(&gateway, &format!("?since={begin}"), None).await;
    // More than the sockets and the limit hold.
    let mebibytes = 16;
    let all = 16 * mebibytes;
    let quick = tokio::spawn(async move {
        for _ in 0..all {
            quick.change().await.expect("it reads all the time");
        }
    });
    for number in 0..mebibytes {
        append_mebibyte(&gateway, number).await;
    }
    within("the quick client", quick).await.unwrap();
    let mut read = Vec::new();
    within("the end of the stream", slow.read_to_end(&mut read))
        .await
        .unwrap();
    let read = String::from_utf8_lossy(&read);
    let seen = read.lines().filter_map(|line| line.strip_prefix("id: "));
    let seen: Vec<u64> = seen.map(|id| id.parse().unwrap()).collect();
    assert!(!seen.is_empty() && seen.len() < all, "{}", seen.len());

    let last = *seen.last().unwrap();
    let mut reader = EventReader::open(&gateway, "", Some(last)).await;
    let mut event: StreamedEvent = reader.change().await.unwrap();
    assert_eq!(event.id, Some(last + 1));
    let end = format!("mebibyte {}.", mebibytes - 1);
    while !event.data["text"].as_str().unwrap().starts_with(&end) {
        let next = reader.change().await.unwrap();
        assert_eq!(next.id, event.id.map(|id| id + 1));
        event = next;
    }
}

/// Returns the most memory that this process has used so far, in MiB.
fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() / 1024
}

#[tokio::test]
async fn two_hundred_clients_that_read_nothing_share_what_waits_for_them() {
    let gateway = Gateway::start().await;
    let begin = gateway.get("/v1/events?follow=false").await.ok(200);
    let begin = begin
        .as_array()
        .unwrap()
        .last()
        .map_or(0, |e| e["id"].as_u64().unwrap());
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(open_and_ignore(&gateway, begin).await);
    }
    let before = peak_mib();
    for number in 0..8 {
        append_mebibyte(&gateway, number).await;
    }
    let grown = peak_mib() - before;
    // Copies for each client would take up to 1 MiB for each of them.
    assert!(grown < 100, "{grown} MiB");
}

#[tokio::test]
async fn findings_are_listed_and_told_once() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    assert_eq!(gateway.get("/v1/findings").await.ok(200), json!([]));
    let finding = |severity, model: &str, short: u32| Finding {
        severity,
        subject: Some(Subject::Model(model.parse().unwrap())),
        problem: "model_short".to_owned(),
        model: None,
        since_ms: Some(1),
        missed_requests: 0,
        text: format!("{model} is short by {short} requests/s"),
        cause: format!("{short} devices are too few"),
        evidence: Vec::new(),
        root: None,
        victims: Vec::new(),
        cure: Some(Cure {
            text: "add one T4".to_owned(),
            preview: None,
        }),
    };
    let findings = gateway.app.findings();
    findings.set(vec![finding(Severity::Warning, "a", 40)]);
    let critical = finding(Severity::Critical, "b", 1);
    findings.set(vec![finding(Severity::Warning, "a", 39), critical.clone()]);
    let listed = gateway.get("/v1/findings").await.ok(200);
    assert_eq!(listed[0]["subject"], json!({"model": "b:1"}));
    assert_eq!(listed[1]["text"], "a is short by 39 requests/s");
    assert_eq!(listed[1]["cure"]["text"], "add one T4");
    findings.set(vec![critical]);

    let mut told = Vec::new();
    for _ in 0..3 {
        let event = reader.named("finding").await.data;
        told.push((event["state"].clone(), event["subject"]["model"].clone()));
    }
    let expected = [("raised", "a:1"), ("raised", "b:1"), ("cleared", "a:1")];
    assert_eq!(told, expected.map(|(s, m)| (json!(s), json!(m))));
}

#[tokio::test]
async fn what_is_wrong_with_the_model_repository_is_a_finding_until_it_is_right() {
    const PATH: &str = "/v1/repository/problems";
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    let problem = |place: &str| json!({"place": place, "problem": "there is no model.json"});
    let problems = json!({"problems": [problem("a"), problem("b/2")]});
    assert_eq!(gateway.put(PATH, &problems).await.status, 204);
    let event = reader.named("finding").await.data;
    assert_eq!(event["state"], "raised");
    let listed = gateway.get("/v1/findings").await.ok(200);
    assert_eq!(
        listed[0]["text"],
        "the model repository is not served as it is there: a, b/2"
    );
    assert_eq!(
        listed[0]["cause"],
        "a: there is no model.json; b/2: there is no model.json"
    );

    let many = json!({"problems": vec![problem("a"); 101]});
    let message = gateway.put(PATH, &many).await.error(400);
    assert_eq!(message, "problems: 101 are over the limit of 100");
    let none = json!({"problems": []});
    assert_eq!(gateway.put(PATH, &none).await.status, 204);
    assert_eq!(reader.named("finding").await.data["state"], "cleared");
}

#[tokio::test]
async fn a_gateway_that_stops_ends_its_streams_at_once() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    reader.next().await.unwrap();
    let begin = tokio::time::Instant::now();
    let Gateway { app, .. } = gateway;
    within("the end", app.shutdown()).await;
    while reader.next().await.is_some() {}
    // Streams that are cut off make the shutdown wait for the whole grace period of the admin listener.
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn the_names_of_classes_are_told_with_their_model_alone() {
    let gateway = Gateway::start().await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    let digest = gateway.upload(b"a file").await;
    let mut body = registration("moods", digest);
    let names = ["dull", "fair", "fine", "grand"];
    body["postprocess"] = json!({"y": {"top_k": 2, "labels": names}});
    let registered = gateway.post("/v1/models", &body).await.ok(201);
    let event = reader.named("model").await;
    let listed = &gateway.get("/v1/models").await.ok(200)[0];
    let own = gateway.get("/v1/models/moods").await.ok(200);
    for (view, labels) in [
        (&registered, Some(json!(names))),
        (&own, Some(json!(names))),
        (listed, None),
        (&event.data["object"], None),
    ] {
        let classes = &view["postprocess"]["y"];
        let told = (classes["top_k"].as_u64(), classes.get("labels").cloned());
        assert_eq!(told, (Some(2), labels));
    }
}
