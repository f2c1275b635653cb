//! A client of `GET /v1/events`.

use serde_json::Value;

use super::{client, gateway::Gateway, within};

/// An event of the stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamedEvent {
    pub(crate) id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// A client that reads the stream as far as the test asks.
pub(crate) struct EventReader {
    response: reqwest::Response,
    text: String,
    /// The last id, as a browser keeps it.
    pub(crate) last_id: Option<u64>,
}

impl EventReader {
    /// Opens the stream with this query, as a client whose last event is `last_id`.
    pub(crate) async fn open(gateway: &Gateway, query: &str, last_id: Option<u64>) -> Self {
        let address = gateway.app.admin_address();
        let mut request = client()
            .get(format!("http://{address}/v1/events{query}"))
            .bearer_auth(gateway.token("admin-token"));
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let response = within("the stream", request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
            last_id,
        }
    }

    /// Returns the next event; `None` once the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<StreamedEvent> {
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let event = parse(&self.text[..end]);
                self.text.drain(..end + 2);
                if let Some(event) = event {
                    self.last_id = event.id.or(self.last_id);
                    return Some(event);
                }
            }
            let chunk = within("an event", self.response.chunk()).await;
            let chunk = chunk.unwrap_or_default()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Returns the next event other than `goodput`.
    pub(crate) async fn change(&mut self) -> Option<StreamedEvent> {
        loop {
            match self.next().await {
                Some(event) if event.name == "goodput" => {}
                other => return other,
            }
        }
    }

    /// Returns the next event of this name.
    pub(crate) async fn named(&mut self, name: &str) -> StreamedEvent {
        loop {
            let event = self.next().await.expect("the stream goes on");
            if event.name == name {
                return event;
            }
        }
    }
}

/// Parses the lines of an event; `None` without data.
fn parse(block: &str) -> Option<StreamedEvent> {
    let field = |name: &str| {
        let mut lines = block.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let data = field("data")?;
    Some(StreamedEvent {
        id: field("id").map(|id| id.parse().unwrap()),
        name: field("event").unwrap().to_owned(),
        data: serde_json::from_str(data).unwrap(),
    })
}
