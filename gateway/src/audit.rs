//! Acts of admins, as the audit log keeps them: what they change, what leaves the gateway with its secrets or models, and refused sign-ins.
//!
//! The authorisation of a request says who acts; the handler, or for a command the control plane, says what is done; the store records
//! both in the transaction that does it.

use packhorse_api::AuditActor;
use packhorse_cluster::Scheduling;
use packhorse_control::{Command, ModelSpecChange, SplitChange};
use serde_json::{Value, json};

/// An act that is about to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// Who acts.
    pub(crate) actor: AuditActor,
    /// The kind of the subject and a verb.
    pub(crate) action: &'static str,
    /// The model, node, key or file that it is about; `None` for the whole cluster.
    pub(crate) subject: Option<String>,
    /// What is changed.
    pub(crate) change: Value,
    /// The values that it replaces: the fields of the change that are different before it.
    pub(crate) before: Option<Value>,
}

impl Act {
    /// Returns an act about a subject that changes nothing else than what its name says.
    pub fn new(actor: AuditActor, action: &'static str, subject: &dyn ToString) -> Self {
        Self {
            actor,
            action,
            subject: Some(subject.to_string()),
            change: json!({}),
            before: None,
        }
    }

    /// Returns an act about the whole cluster.
    pub(crate) fn of_cluster(actor: AuditActor, action: &'static str) -> Self {
        Self {
            actor,
            action,
            subject: None,
            change: json!({}),
            before: None,
        }
    }

    /// Sets what is changed.
    pub(crate) fn with(self, change: Value) -> Self {
        Self { change, ..self }
    }

    /// Returns the act of a command; `None` for those of agents.
    pub(crate) fn of_command(actor: &AuditActor, command: &Command) -> Option<Self> {
        let act = |action, subject: &dyn ToString| Self::new(actor.clone(), action, subject);
        Some(match command {
            Command::Register(spec, bytes) | Command::Replace(spec, bytes) => {
                let program = &spec.program;
                let action = match command {
                    Command::Replace(..) => "model.replace",
                    _ => "model.register",
                };
                act(action, &program.model).with(json!({
                    "artifact": program.artifact.to_string(),
                    "artifact_bytes": bytes,
                    "max_batch_size": program.max_batch_size,
                    "slo_ms": millis(spec.slo),
                    "rate_rps": spec.rate,
                    "rate": spec.rate_mode.as_str(),
                    "priority": spec.priority,
                    "min_replicas": spec.min_replicas,
                    "queue_limit": spec.queue_limit,
                    "max_cold_wait_ms": spec.max_cold_wait.map(millis),
                    "cache": spec.cache,
                    "family": spec.family(),
                    "accuracy": spec.variant.as_ref().map(|variant| variant.accuracy),
                    "preprocess": spec.processing.preprocess.keys().collect::<Vec<_>>(),
                    "postprocess": spec.processing.postprocess.keys().collect::<Vec<_>>(),
                }))
            }
            Command::ChangeModel(name, version, change) => {
                act("model.change", &with_version(name, version.as_ref())).with(changes(change))
            }
            Command::Split(name, SplitChange::Set(split, sticky)) => {
                let mut change = json!({});
                if let Some(split) = split {
                    change["split"] = json!(split);
                }
                if let Some(sticky) = sticky {
                    change["sticky"] = json!(sticky.as_str());
                }
                act("model.split", name).with(change)
            }
            Command::Split(name, SplitChange::Promote(version)) => {
                act("model.promote", name).with(json!({"version": version.get()}))
            }
            Command::Split(name, SplitChange::RollBack) => act("model.roll-back", name),
            Command::RemoveModel(name, version) => {
                act("model.remove", &with_version(name, version.as_ref()))
            }
            Command::ImportProfiles(profiles) => {
                let models = profiles
                    .iter()
                    .map(|(model, kind, _)| format!("{model} on {kind}"));
                let models: Vec<String> = models.take(MAX_LISTED).collect();
                let change = json!({"profiles": models});
                Self::of_cluster(actor.clone(), "profiles.import").with(change)
            }
            Command::ImportPairs(kind, pairs) => {
                act("pairs.import", kind).with(json!({"pairs": pairs.pairs.len()}))
            }
            Command::ScheduleNode(node, scheduling, deadline) => match scheduling {
                Scheduling::Open => act("node.uncordon", node),
                Scheduling::Cordoned => act("node.cordon", node),
                Scheduling::Draining => {
                    let deadline = deadline.map(|deadline| deadline.as_secs());
                    act("node.drain", node).with(json!({"deadline_s": deadline}))
                }
            },
            Command::RemoveNode(node) => act("node.remove", node),
            Command::ChangeSettings(settings) => {
                let mut change = json!({});
                if let Some(policy) = &settings.policy {
                    change["policy"] = json!(policy);
                }
                if let Some(options) = &settings.options {
                    change["options"] = json!(options);
                }
                if let Some(discipline) = settings.discipline {
                    change["discipline"] = json!(discipline.to_string());
                }
                Self::of_cluster(actor.clone(), "policy.change").with(change)
            }
            Command::ReportRepository(..) | Command::TakeLease(..) | Command::Report(..) => {
                return None;
            }
        })
    }
}

/// The largest number of profiles that an entry lists.
const MAX_LISTED: usize = 100;

fn with_version(name: &dyn ToString, version: Option<&packhorse_cluster::ModelVersion>) -> String {
    match version {
        Some(version) => format!("{}:{}", name.to_string(), version.get()),
        None => name.to_string(),
    }
}

/// Returns what is present of a change.
fn changes(change: &ModelSpecChange) -> Value {
    let mut changes = json!({});
    if let Some(slo) = change.slo {
        changes["slo_ms"] = json!(millis(slo));
    }
    if let Some(rate) = change.rate {
        changes["rate_rps"] = json!(rate);
    }
    if let Some(mode) = change.rate_mode {
        changes["rate"] = json!(mode.as_str());
    }
    if let Some(priority) = change.priority {
        changes["priority"] = json!(priority);
    }
    if let Some(replicas) = change.min_replicas {
        changes["min_replicas"] = json!(replicas);
    }
    if let Some(limit) = change.queue_limit {
        changes["queue_limit"] = json!(limit);
    }
    if let Some(wait) = change.max_cold_wait {
        changes["max_cold_wait_ms"] = json!(wait.map(millis));
    }
    if let Some(cache) = change.cache {
        changes["cache"] = json!(cache);
    }
    if let Some(family) = &change.family {
        changes["family"] = json!(family);
    }
    if let Some(accuracy) = change.accuracy {
        changes["accuracy"] = json!(accuracy);
    }
    changes
}

fn millis(duration: std::time::Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
