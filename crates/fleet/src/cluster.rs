//! The state of a cluster.

use packhorse_api::{KeyView, ModelView, NodeView, PolicyView};
use packhorse_cluster::{ModelName, ModelVersion};

/// The state of a cluster, as far as files can declare it. What is `None` is not asked for, and not compared.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// All versions of all models. Those with a declared `postprocess` have the names of their classes.
    pub models: Vec<ModelView>,
    /// The policy.
    pub policy: Option<PolicyView>,
    /// All nodes.
    pub nodes: Option<Vec<NodeView>>,
    /// All API keys.
    pub keys: Option<Vec<KeyView>>,
}

impl Cluster {
    /// Returns the versions of a model.
    pub fn versions<'a>(&'a self, name: &'a ModelName) -> impl Iterator<Item = &'a ModelView> {
        self.models.iter().filter(move |view| view.name == *name)
    }

    /// Returns a version of a model.
    pub fn version(&self, name: &ModelName, version: ModelVersion) -> Option<&ModelView> {
        let mut versions = self.models.iter();
        versions.find(|view| view.name == *name && view.version == version)
    }

    /// Returns true if no version of the model is newer.
    pub(crate) fn has_no_newer(&self, name: &ModelName, version: ModelVersion) -> bool {
        self.versions(name).all(|view| view.version <= version)
    }
}
