//! One step of a plan.

use std::fmt;

use packhorse_api::{KeyChange, ModelChange, ModelRegistration, PolicyChange};
use packhorse_cluster::{ModelName, ModelVersion, NodeName};
use serde::Serialize;
use serde_json::Value;

/// A change with the values that it replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// The fields that become different. Those of what is created or removed are left out.
    pub fields: Vec<FieldChange>,
}

/// A change of the cluster: one call of its API.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The policy, its options or the discipline.
    Policy(PolicyChange),
    /// A new version of a model.
    Register(Box<ModelRegistration>),
    /// A version of a model in place of the one of its number, which has another program or signature.
    Replace(Box<ModelRegistration>),
    /// Fields of a version of a model, or of all.
    Model(ModelName, Option<ModelVersion>, Box<ModelChange>),
    /// The split of a model.
    Split(ModelName, Box<ModelChange>),
    /// The limits of the API key with this identity and name.
    Key {
        /// The identity.
        id: String,
        /// The name.
        name: String,
        /// The limits.
        limits: KeyChange,
    },
    /// A node that gets no new replicas, if this is true, or gets them again.
    Node(NodeName, bool),
    /// A version of a model, or all, which ends.
    Remove(ModelName, Option<ModelVersion>),
}

/// A field that becomes different.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldChange {
    /// The field, as the API names it.
    pub field: String,
    /// The value that the cluster has.
    pub old: Value,
    /// The value that the files say.
    pub new: Value,
}

impl Step {
    /// Returns the name of what is done: `create`, `replace`, `change` or `remove`.
    pub fn action(&self) -> &'static str {
        match self.change {
            Change::Register(_) => "create",
            Change::Replace(_) => "replace",
            Change::Remove(..) => "remove",
            _ => "change",
        }
    }

    /// Returns the models that the step is about: a model, and the family that it names.
    pub fn models(&self) -> Vec<&ModelName> {
        match &self.change {
            Change::Register(new) | Change::Replace(new) => [Some(&new.name), new.family.as_ref()]
                .into_iter()
                .flatten()
                .collect(),
            Change::Model(name, ..) | Change::Split(name, _) | Change::Remove(name, _) => {
                vec![name]
            }
            Change::Policy(_) | Change::Key { .. } | Change::Node(..) => Vec::new(),
        }
    }

    /// Returns the place in the order of the steps of a plan: versions before the splits that need them, and both before removals.
    pub(crate) fn rank(&self) -> u8 {
        match self.change {
            Change::Policy(_) => 0,
            Change::Register(_) | Change::Replace(_) | Change::Model(..) => 1,
            Change::Split(..) => 2,
            Change::Key { .. } => 3,
            Change::Node(..) => 4,
            Change::Remove(..) => 5,
        }
    }

    /// Returns a step that sets these fields in place of those of what is there.
    pub(crate) fn new(change: Change, set: &impl Serialize, there: &impl Serialize) -> Self {
        let fields = changed(set, there);
        Self { change, fields }
    }
}

/// Returns the fields that are set, with the values of what is there.
pub(crate) fn changed(set: &impl Serialize, there: &impl Serialize) -> Vec<FieldChange> {
    let there = serde_json::to_value(there).unwrap_or_default();
    let Ok(Value::Object(set)) = serde_json::to_value(set) else {
        return Vec::new();
    };
    let fields = set.into_iter().map(|(field, new)| FieldChange {
        old: there.get(&field).cloned().unwrap_or_default(),
        field,
        new,
    });
    fields.filter(|change| change.old != change.new).collect()
}

/// Writes what a change is about.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(_) => f.write_str("policy"),
            Self::Register(new) | Self::Replace(new) => {
                write!(f, "model {}", new.name)?;
                new.version
                    .map_or(Ok(()), |version| write!(f, ":{version}"))
            }
            Self::Model(name, version, _) | Self::Remove(name, version) => {
                write!(f, "model {name}")?;
                version.map_or(Ok(()), |version| write!(f, ":{version}"))
            }
            Self::Split(name, _) => write!(f, "model {name}"),
            Self::Key { id, name, .. } => write!(f, "key {name} ({id})"),
            Self::Node(name, _) => write!(f, "node {name}"),
        }
    }
}
