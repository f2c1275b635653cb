//! Events in the form of a `text/event-stream`.

use bytes::Bytes;

use crate::store::StoredEvent;

/// Returns an event in the form of a `text/event-stream`. `data` is JSON and therefore contains no line end.
pub(super) fn frame(id: Option<u64>, name: &str, data: &str) -> Bytes {
    let mut text = String::with_capacity(data.len() + name.len() + 48);
    if let Some(id) = id {
        text.push_str("id: ");
        text.push_str(&id.to_string());
        text.push('\n');
    }
    for part in ["event: ", name, "\ndata: ", data, "\n\n"] {
        text.push_str(part);
    }
    text.into()
}

/// Returns a stored event as an event of the stream.
pub(super) fn stored_frame(event: &StoredEvent) -> Bytes {
    frame(Some(event.id), event.kind.name(), &event.body)
}
