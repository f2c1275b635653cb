//! The stream of events of a gateway, and how to follow it.

use std::{collections::VecDeque, time::Duration};

use packhorse_api::{
    GoodputView,
    events::{EventKind, EventView, Finding, GOODPUT_EVENT, Incident, SNAPSHOT_EVENT, Snapshot},
};
use packhorse_cluster::ModelName;
use reqwest::{Method, Response, StatusCode, header::ACCEPT};
use tokio::time::{sleep, timeout};

use crate::{
    AdminClient, CallError, Cause,
    server_sent::{Parser, ServerSentEvent},
};

/// The longest silence of a stream that is alive: the gateway sends something every second.
const SILENCE: Duration = Duration::from_secs(30);
/// The time before the first attempt to connect again. It doubles with each attempt that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest time between two attempts to connect again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A message of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum EventMessage {
    /// The state of the whole cluster: the first message, and the one that replaces everything after a gap.
    Snapshot(Box<Snapshot>),
    /// A change.
    Change(Box<EventView>),
    /// The goodput of the last second.
    Goodput(GoodputView),
}

/// A stream of events over one connection.
#[derive(Debug)]
pub struct EventStream {
    client: AdminClient,
    response: Response,
    parser: Parser,
    /// The messages that have arrived and were not returned.
    arrived: VecDeque<EventMessage>,
    last_id: Option<u64>,
}

impl AdminClient {
    /// Opens the stream of events. With the number of the last event that was read, the stream continues after it, if all later ones are
    /// stored; otherwise it begins with a snapshot.
    pub async fn events(&self, since: Option<u64>) -> Result<EventStream, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "events"]);
        let mut request = request.header(ACCEPT, "text/event-stream");
        if let Some(id) = since {
            request = request.header("last-event-id", id);
        }
        Ok(EventStream {
            client: self.clone(),
            response: self.caller.open(request).await?,
            parser: Parser::default(),
            arrived: VecDeque::new(),
            last_id: since,
        })
    }

    /// Returns the newest stored events, the oldest of them first: at most `limit`, and only those after `since`.
    pub async fn stored_events(
        &self,
        since: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EventView>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "events"]);
        let request = request
            .query(&[("follow", "false")])
            .query(&[("limit", limit)])
            .query(&since.map(|since| [("since", since)]));
        self.caller.fetch(request).await
    }

    /// Opens the stream of events, and opens it again whenever the connection is lost.
    ///
    /// # Errors
    /// If it cannot be opened the first time.
    pub async fn follow_events(&self, since: Option<u64>) -> Result<EventFollower, CallError> {
        Ok(EventFollower {
            client: self.clone(),
            stream: Some(self.events(since).await?),
            last_id: since,
            pause: FIRST_PAUSE,
        })
    }

    /// Returns what is wrong in the cluster, the most severe first.
    pub async fn findings(&self) -> Result<Vec<Finding>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "findings"]);
        self.caller.fetch(request).await
    }

    /// Returns the incidents since the gateway's start, the newest first: those of a model only, if one is given, and those that were not over
    /// before `since` and had begun by `until`, in milliseconds since 1970, or before now if they are negative.
    pub async fn incidents(
        &self,
        model: Option<&ModelName>,
        since: Option<i64>,
        until: Option<i64>,
    ) -> Result<Vec<Incident>, CallError> {
        let request = self.caller.request(Method::GET, ["v1", "incidents"]);
        let request = request
            .query(&model.map(|model| [("model", model)]))
            .query(&since.map(|since| [("since", since)]))
            .query(&until.map(|until| [("until", until)]));
        self.caller.fetch(request).await
    }
}

impl EventStream {
    /// Waits for the next message; `None` once the gateway has ended the stream.
    ///
    /// # Errors
    /// If the connection is lost, or contains something else.
    pub async fn next(&mut self) -> Result<Option<EventMessage>, CallError> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                match &message {
                    EventMessage::Snapshot(snapshot) => self.last_id = Some(snapshot.id),
                    EventMessage::Change(event) => self.last_id = Some(event.id),
                    EventMessage::Goodput(_) => {}
                }
                return Ok(Some(message));
            }
            let caller = &self.client.caller;
            let piece = match timeout(SILENCE, self.response.chunk()).await {
                Err(_) => return Err(caller.silent(SILENCE)),
                Ok(Err(error)) => return Err(caller.failure(SILENCE, &error)),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(piece))) => piece,
            };
            let mut events = Vec::new();
            let fed = self.parser.feed(&piece, |event| events.push(event));
            fed.map_err(|e| caller.invalid_response(Cause::innermost(&e)))?;
            for event in &events {
                let message = parse(event);
                let message = message.map_err(|e| caller.invalid_response(Cause::innermost(&e)))?;
                self.arrived.extend(message);
            }
        }
    }

    /// Returns the number of the last event that was returned, with which another stream continues.
    pub fn last_id(&self) -> Option<u64> {
        self.last_id
    }
}

/// Parses the data of an event; `None` for the events of later versions.
fn parse(event: &ServerSentEvent) -> Result<Option<EventMessage>, serde_json::Error> {
    Ok(match event.name.as_str() {
        SNAPSHOT_EVENT => Some(EventMessage::Snapshot(serde_json::from_str(&event.data)?)),
        GOODPUT_EVENT => Some(EventMessage::Goodput(serde_json::from_str(&event.data)?)),
        name if name.parse::<EventKind>().is_ok() => {
            Some(EventMessage::Change(serde_json::from_str(&event.data)?))
        }
        _ => None,
    })
}

/// A stream of events over as many connections as it takes.
#[derive(Debug)]
pub struct EventFollower {
    client: AdminClient,
    stream: Option<EventStream>,
    last_id: Option<u64>,
    /// The time before the next attempt to connect.
    pause: Duration,
}

/// The next thing that happens to a follower.
#[derive(Debug)]
pub enum Followed {
    /// A message arrived.
    Message(EventMessage),
    /// The connection was lost, or the gateway closed it (`None`). The follower connects again.
    Interrupted(Option<CallError>),
    /// The follower is connected again.
    Resumed,
}

impl EventFollower {
    /// Waits for the next thing that happens.
    ///
    /// # Errors
    /// If the gateway refuses the stream for good, for instance because the token is no longer valid.
    pub async fn next(&mut self) -> Result<Followed, CallError> {
        if let Some(stream) = &mut self.stream {
            let lost = match stream.next().await {
                Ok(Some(message)) => {
                    self.last_id = stream.last_id();
                    self.pause = FIRST_PAUSE;
                    return Ok(Followed::Message(message));
                }
                Ok(None) => None,
                Err(error) => Some(error),
            };
            self.stream = None;
            return Ok(Followed::Interrupted(lost));
        }
        loop {
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            match self.client.events(self.last_id).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return Ok(Followed::Resumed);
                }
                Err(error) if error.status().is_some_and(is_final) => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Returns true if another attempt would be refused like this one.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && !matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
        )
}
