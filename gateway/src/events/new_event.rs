//! The changes that the control plane tells.

use packhorse_api::{
    ModelView, NodeView, PlanView,
    events::{EventKind, EventObject, EventState, Finding, Subject},
};
use packhorse_cluster::ModelId;

/// A change, as the control plane tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The kind of change.
    pub kind: EventKind,
    /// The object that has changed; none if it is the cluster.
    pub subject: Option<Subject>,
    /// The state of the subject after the change.
    pub state: EventState,
    /// The reason for the change.
    pub reason: Option<String>,
    /// The change in a sentence for people.
    pub text: String,
    /// The subject after the change; none if it no longer exists.
    pub object: Option<EventObject>,
}

impl NewEvent {
    /// A model was registered, or is in another state.
    pub fn model(view: ModelView, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Model,
            subject: Some(Subject::Model(ModelId {
                name: view.name.clone(),
                version: view.version,
            })),
            state: view.state.into(),
            reason: view.reason.clone(),
            text: text.into(),
            object: Some(EventObject::Model(Box::new(view))),
        }
    }

    /// A model was removed.
    pub fn model_removed(id: &ModelId) -> Self {
        Self {
            kind: EventKind::Model,
            subject: Some(Subject::Model(id.clone())),
            state: EventState::Removed,
            reason: None,
            text: format!("model {id} was removed"),
            object: None,
        }
    }

    /// A node joined, was lost, or is in another state.
    pub fn node(view: NodeView, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Node,
            subject: Some(Subject::Node(view.name.clone())),
            state: view.state.into(),
            reason: None,
            text: text.into(),
            object: Some(EventObject::Node(Box::new(view))),
        }
    }

    /// A plan is in this state.
    pub fn plan(view: PlanView, state: EventState, text: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Plan,
            subject: view.generation.map(Subject::Plan),
            state,
            reason: Some(view.reason.clone()),
            text: text.into(),
            object: Some(EventObject::Plan(Box::new(view))),
        }
    }

    /// A finding was raised or cleared.
    pub(super) fn finding(finding: Finding, state: EventState) -> Self {
        Self {
            kind: EventKind::Finding,
            subject: finding.subject.clone(),
            state,
            reason: Some(finding.cause.clone()),
            text: finding.text.clone(),
            object: Some(EventObject::Finding(Box::new(finding))),
        }
    }
}

/// A change on its way to the log's task.
#[derive(Debug)]
pub(super) struct AppendedEvent {
    /// The time of the change, in milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) event: NewEvent,
}
