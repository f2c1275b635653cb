//! `/v1/events`, `/v1/findings` and `/v1/incidents`: what happens in the cluster, what is wrong, and what was.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use packhorse_api::{
    ErrorBody,
    events::{EventView, Finding, Incident, Snapshot, Subject},
};
use packhorse_cluster::ModelName;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::{
    Admin, NO_STORE,
    times::{check_order, named_ms},
};
use crate::{
    api::error::{ApiError, Query},
    events::{CatchUp, Reader, ReaderPermit, last_second},
    store::unix_ms,
};

/// The header by which a client that reconnects names its last event.
const LAST_EVENT_ID: &str = "last-event-id";
/// The first line of a stream: clients reconnect after this number of milliseconds.
const RETRY: &str = "retry: 1000\n\n";
/// A comment that shows that the connection is alive.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
/// The time without an event after which a comment is sent.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);

/// The events to return.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichEvents {
    /// The last event that the client has read: the stream continues after it, without a snapshot, as long as all later events are
    /// stored. The header `Last-Event-ID` takes precedence.
    since: Option<u64>,
    /// False to get the newest stored events as a JSON array, the oldest of them first, in place of a stream.
    #[serde(default = "WhichEvents::default_follow")]
    follow: bool,
    /// The largest number of events in the array, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    #[serde(default = "WhichEvents::default_limit")]
    limit: usize,
}

impl WhichEvents {
    const MAX_LIMIT: usize = 10_000;

    fn default_follow() -> bool {
        true
    }

    fn default_limit() -> usize {
        100
    }
}

/// Returns the events of the cluster as they happen.
///
/// The stream begins with the event `snapshot`, whose data is a `Snapshot`. Each change follows as an event that is named by its kind
/// (`model`, `node`, `device`, `replica`, `plan`, `drift` or `finding`), with an id; its data is an `EventView`. Every second there is an
/// event `goodput` without an id, whose data is a `GoodputView` of the last second. A client that is 1 MiB behind is disconnected. A client
/// that reconnects with its last id continues there; if an event in between is no longer stored, it gets a new snapshot.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", security(("admin" = [])),
    params(WhichEvents, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that the client has read")),
    responses(
        (status = 200, description = "The stream, or the array of stored events", content((Snapshot = "text/event-stream"), (Vec<EventView> = "application/json"))),
        (status = 503, description = "Too many clients read events", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn stream(
    State(admin): State<Admin>,
    Query(which): Query<WhichEvents>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if !which.follow {
        return list(&admin, which).await;
    }
    let since = match headers.get(LAST_EVENT_ID) {
        Some(id) => Some(parse_id(id)?),
        None => which.since,
    };
    let Some(permit) = admin.events.reader_permit() else {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients read events; close one of their streams",
        ));
    };
    let mut stream = EventStream {
        admin,
        phase: match since {
            Some(since) => Phase::CatchingUp(since),
            None => Phase::Beginning,
        },
        _permit: permit,
    };
    // The first event is made before the answer begins, so that its failure has a status.
    let first = stream.next().await?.unwrap_or_default();
    let first = [RETRY.as_bytes(), &first].concat();
    let rest = futures_util::stream::unfold(stream, async |mut stream| {
        // A failure has been logged; the client reconnects.
        let event = stream.next().await.ok().flatten()?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    let begin = futures_util::stream::once(std::future::ready(Ok(Bytes::from(first))));
    let body = Body::from_stream(futures_util::StreamExt::chain(begin, Box::pin(rest)));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), NO_STORE];
    Ok((headers, [("x-accel-buffering", "no")], body).into_response())
}

/// Returns what is wrong in the cluster: a cause above what it causes, and what costs the most requests first.
#[utoipa::path(
    get, path = "/v1/findings", tag = "events", security(("admin" = [])),
    responses((status = 200, body = [Finding]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn findings(State(admin): State<Admin>) -> Json<Vec<Finding>> {
    Json(admin.findings.get().to_vec())
}

/// The incidents to list.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichIncidents {
    /// Only those that were not over before this time, in milliseconds since 1970; a negative number counts from now.
    since: Option<i64>,
    /// Only those that had begun by this time, in milliseconds since 1970; a negative number counts from now.
    until: Option<i64>,
    /// Only those that are about this model in any version, or of which it is a victim.
    #[param(value_type = Option<String>)]
    model: Option<ModelName>,
}

impl WhichIncidents {
    fn contains(&self, incident: &Incident) -> bool {
        let is_of = |finding: &Finding, name: &ModelName| {
            let subject = match &finding.subject {
                Some(Subject::Model(id)) => Some(id),
                _ => None,
            };
            let mut models = subject
                .into_iter()
                .chain(&finding.model)
                .chain(&finding.victims);
            models.any(|id| id.name == *name)
        };
        let mut findings = incident.findings.iter();
        let at = |ms| u64::try_from(named_ms(ms)).unwrap_or(0);
        let is_over_by = |time| incident.end_ms.is_some_and(|end| end < time);
        self.since.is_none_or(|since| !is_over_by(at(since)))
            && self
                .until
                .is_none_or(|until| incident.since_ms <= at(until))
            && self
                .model
                .as_ref()
                .is_none_or(|name| findings.any(|one| is_of(&one.finding, name)))
    }
}

/// Returns the incidents since the gateway's start: findings with one root, from the first of them until the last is over.
///
/// Those that are not over come first, then those that cost the most requests, then the newest.
/// The newest 128 are kept, and are gone when the gateway ends.
#[utoipa::path(
    get, path = "/v1/incidents", tag = "events", security(("admin" = [])), params(WhichIncidents),
    responses((status = 200, body = [Incident]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn incidents(
    State(admin): State<Admin>,
    Query(which): Query<WhichIncidents>,
) -> Result<Json<Vec<Incident>>, ApiError> {
    check_order(which.since, which.until)?;
    let incidents = admin.findings.incidents();
    let listed = incidents.iter().filter(|incident| which.contains(incident));
    Ok(Json(listed.cloned().collect()))
}

fn parse_id(header: &HeaderValue) -> Result<u64, ApiError> {
    let id = header.to_str().ok().and_then(|text| text.parse().ok());
    id.ok_or_else(|| ApiError::bad_request("Last-Event-ID: expected the number of an event"))
}

async fn list(admin: &Admin, which: WhichEvents) -> Result<Response, ApiError> {
    if which.limit == 0 || which.limit > WhichEvents::MAX_LIMIT {
        let max = WhichEvents::MAX_LIMIT;
        return Err(ApiError::bad_request(format!("limit: expected 1 to {max}")));
    }
    let since = which.since.unwrap_or_default();
    let events = admin.events.newest(since, which.limit).await?;
    let bodies: Result<Vec<Box<RawValue>>, _> = events
        .into_iter()
        .map(|event| RawValue::from_string(event.body))
        .collect();
    let bodies = bodies.map_err(|e| ApiError::internal(&e))?;
    Ok(Json(bodies).into_response())
}

/// The stream of one client.
struct EventStream {
    admin: Admin,
    phase: Phase,
    _permit: ReaderPermit,
}

enum Phase {
    /// The client has nothing: it gets a snapshot.
    Beginning,
    /// The client has read everything up to this event.
    CatchingUp(u64),
    /// The client has read everything that is stored.
    Live(Reader),
}

impl EventStream {
    /// Returns the next events; `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            match &mut self.phase {
                Phase::Beginning => {
                    let make = async |id| snapshot(&self.admin, id).await;
                    let (id, snapshot) = self.admin.events.snapshot(make).await?;
                    self.phase = Phase::CatchingUp(id);
                    return Ok(Some(snapshot));
                }
                Phase::CatchingUp(since) => match self.admin.events.catch_up(*since).await? {
                    CatchUp::Gap => self.phase = Phase::Beginning,
                    CatchUp::Page(events, last) => {
                        *since = last;
                        return Ok(Some(events));
                    }
                    CatchUp::Live(reader) => {
                        self.phase = Phase::Live(reader);
                        // The answer's head is sent at once, even if nothing happens for a while.
                        return Ok(Some(KEEP_ALIVE));
                    }
                },
                Phase::Live(reader) => {
                    let next = timeout(KEEP_ALIVE_AFTER, reader.next()).await;
                    return Ok(next.unwrap_or(Some(KEEP_ALIVE)));
                }
            }
        }
    }
}

/// Returns the state of the cluster, which contains the event `id` and all before it. Each part is what its own route returns.
async fn snapshot(admin: &Admin, id: u64) -> Result<Snapshot, ApiError> {
    let controller = &admin.controller;
    Ok(Snapshot {
        id,
        at_ms: u64::try_from(unix_ms()).unwrap_or_default(),
        models: controller.models().await?,
        nodes: controller.nodes().await?,
        plan: controller.plan().await?,
        policy: controller.policy().await?,
        findings: admin.findings.get().to_vec(),
        goodput: last_second(&admin.data_plane),
    })
}
