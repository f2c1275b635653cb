//! The declarations of files.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_api::{KeyChange, ModelChange, ModelRegistration, PolicyChange};
use packhorse_cluster::{ModelName, ModelVersion, NodeName};

/// A fleet as its files say it. What they do not say is left alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// The models that could be read.
    pub models: BTreeMap<ModelName, DeclaredModel>,
    /// The models whose files could not be read, or not all of them: nothing of them is removed.
    pub unreadable: BTreeSet<ModelName>,
    /// The policy, its options and the discipline.
    pub policy: Option<PolicyChange>,
    /// The nodes, and true for those that get no new replicas.
    pub nodes: BTreeMap<NodeName, bool>,
    /// The limits of API keys.
    pub keys: Vec<DeclaredKey>,
}

/// A model as its files say it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeclaredModel {
    /// The versions, each with its registration.
    pub versions: BTreeMap<ModelVersion, DeclaredVersion>,
    /// The change of a model's split and of the choice of a version, of which nothing else is set.
    pub split: Option<ModelChange>,
}

/// A version of a model as its files say it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredVersion {
    /// The registration, with name, version and artifact.
    pub registration: ModelRegistration,
    /// The fields that the files say. What they do not say is as it is registered.
    pub said: BTreeSet<String>,
}

/// The limits of an API key.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredKey {
    /// The key.
    pub key: KeyName,
    /// Its limits; absent ones are left alone.
    pub limits: KeyChange,
}

/// The way in which a file names an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyName {
    /// The key's identity.
    Id(String),
    /// The key's name, which only one key may have.
    Name(String),
}

impl Fleet {
    /// Returns true if the files say nothing about any model.
    pub fn names_no_model(&self) -> bool {
        self.models.is_empty() && self.unreadable.is_empty()
    }

    /// Returns true if the files name the model, or this version of it: with a registration, or in a split.
    pub(crate) fn names(&self, name: &ModelName, version: Option<ModelVersion>) -> bool {
        if self.unreadable.contains(name) {
            return true;
        }
        let Some(model) = self.models.get(name) else {
            return false;
        };
        version.is_none_or(|version| {
            let split = model
                .split
                .as_ref()
                .and_then(|change| change.split.as_ref());
            let split = split.and_then(Option::as_ref);
            let in_split = split.is_some_and(|split| split.iter().any(|(of, _)| of == version));
            in_split || model.versions.contains_key(&version)
        })
    }
}
