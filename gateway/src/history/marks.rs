//! The marks of the history: the events that change what the curves show.

use packhorse_api::events::{EventKind, EventState, Subject};
use packhorse_history::{Mark, MarkKind, Series};
use serde::Deserialize;

use crate::store::StoredEvent;

/// The parts of an event that are read.
#[derive(Deserialize)]
struct Event {
    at_ms: u64,
    state: EventState,
    subject: Option<Subject>,
    text: String,
    object: Option<Object>,
}

/// The part of a finding that is read.
#[derive(Deserialize)]
struct Object {
    severity: Option<String>,
}

/// Returns the mark of an event, if it is one.
pub(super) fn mark(stored: &StoredEvent) -> Option<Mark> {
    if !matches!(
        stored.kind,
        EventKind::Plan | EventKind::Model | EventKind::Finding
    ) {
        return None;
    }
    let event: Event = serde_json::from_str(&stored.body).ok()?;
    let severity = event.object.and_then(|object| object.severity);
    let kind = match (stored.kind, event.state) {
        (EventKind::Plan, EventState::Adopted) => MarkKind::Plan,
        (
            EventKind::Model,
            EventState::Registered
            | EventState::Removed
            | EventState::Failed
            | EventState::Rerouted,
        ) => MarkKind::Version,
        (EventKind::Finding, EventState::Raised)
            if severity.is_some_and(|severity| severity != "info") =>
        {
            MarkKind::Finding
        }
        _ => return None,
    };
    let series = match event.subject {
        Some(Subject::Model(id)) => Some(Series::Model(id)),
        Some(Subject::Device(id)) => Some(Series::Device(id)),
        _ => None,
    };
    Some(Mark::new(event.at_ms, kind, series, &event.text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn adopted_plans_versions_and_findings_that_matter_are_marks() {
        let mark = |kind, state: &str, object| {
            let body = json!({
                "id": 1, "kind": "x", "at_ms": 7, "state": state, "reason": null,
                "subject": {"model": "m:2"}, "text": "it happened", "object": object,
            });
            let body = body.to_string();
            mark(&StoredEvent { id: 1, kind, body })
        };
        let model = Series::Model("m:2".parse().unwrap());
        let found = |kind| Some(Mark::new(7, kind, Some(model.clone()), "it happened"));
        assert_eq!(
            mark(EventKind::Plan, "adopted", json!(null)),
            found(MarkKind::Plan)
        );
        assert_eq!(mark(EventKind::Plan, "proposed", json!({})), None);
        assert_eq!(
            mark(EventKind::Model, "registered", json!({"name": "m"})),
            found(MarkKind::Version)
        );
        assert_eq!(
            mark(EventKind::Model, "rerouted", json!({"name": "m"})),
            found(MarkKind::Version)
        );
        assert_eq!(mark(EventKind::Model, "loading", json!(null)), None);
        let finding = |severity: &str| json!({"severity": severity});
        assert_eq!(
            mark(EventKind::Finding, "raised", finding("critical")),
            found(MarkKind::Finding)
        );
        assert_eq!(mark(EventKind::Finding, "raised", finding("info")), None);
        assert_eq!(
            mark(EventKind::Finding, "cleared", finding("critical")),
            None
        );
        assert_eq!(mark(EventKind::Replica, "serving", json!(null)), None);
    }
}
