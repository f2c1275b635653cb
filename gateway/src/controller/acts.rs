//! The values that acts of admins replace, for the audit log.

use packhorse_cluster::{ModelName, ModelVersion, Split};
use packhorse_control::{Command, SplitChange};
use serde_json::{Map, Value, json};

use super::task::Task;
use crate::audit::Act;

/// The fields of which an act has the names alone.
const NAMES: [&str; 2] = ["preprocess", "postprocess"];

impl Task {
    /// Completes the act of a command that is about to be executed: with the split that it brings, and with what is different now.
    pub(super) fn complete(&self, act: &mut Act, command: &Command) {
        match command {
            Command::Split(_, SplitChange::Promote(version)) => {
                act.change["split"] = json!(Split::all_to(*version));
            }
            Command::Split(name, SplitChange::RollBack) => {
                act.change["split"] = json!(self.controller().rollback_split(name));
            }
            _ => {}
        }
        let now = match command {
            Command::Split(name, _) => self.model_now(name, None),
            Command::ChangeModel(name, version, _) => self.model_now(name, *version),
            Command::Replace(spec, _) => {
                let id = &spec.program.model;
                self.model_now(&id.name, Some(id.version))
            }
            Command::ChangeSettings(_) => serde_json::to_value(self.policy_view()).ok(),
            _ => None,
        };
        act.before = now.and_then(|now| different(&act.change, &now));
    }

    fn model_now(&self, name: &ModelName, version: Option<ModelVersion>) -> Option<Value> {
        serde_json::to_value(self.find_model_view(name, version).ok()?).ok()
    }
}

/// Returns the fields of a change that are different now; `None` if there are none.
fn different(change: &Value, now: &Value) -> Option<Value> {
    let fields = change.as_object()?.iter();
    let fields = fields.filter(|(name, _)| !NAMES.contains(&name.as_str()));
    let before: Map<String, Value> = fields
        .filter_map(|(name, new)| {
            let old = now.get(name)?;
            (old != new).then(|| (name.clone(), old.clone()))
        })
        .collect();
    (!before.is_empty()).then_some(Value::Object(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_act_replaces_are_the_fields_that_it_changes() {
        let now =
            json!({"slo_ms": 200.0, "rate_rps": null, "priority": 5, "preprocess": {"x": {}}});
        let change = json!({"slo_ms": 150.0, "rate_rps": 7.0, "priority": 5, "version": 2, "preprocess": ["x"]});
        let before = json!({"slo_ms": 200.0, "rate_rps": null});
        assert_eq!(different(&change, &now), Some(before));
        assert_eq!(different(&json!({"priority": 5}), &now), None);
        assert_eq!(different(&json!({}), &now), None);
    }
}
