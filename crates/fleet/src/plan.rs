//! The plan that makes a cluster have what files declare.

use std::collections::BTreeSet;

use packhorse_api::{
    KeyChange, KeyView, NodeState, NodeView, PolicyChange, PolicyView, RepositoryProblem,
};
use packhorse_cluster::{ModelName, ModelVersion};

use crate::{
    cluster::Cluster,
    declared::{DeclaredKey, DeclaredModel, Fleet, KeyName},
    step::{Change, Step},
    version::{Comparison, compare, compare_name},
};

/// The steps that make a cluster have what files declare, and what is beside them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps, in the order in which they are carried out.
    pub steps: Vec<Step>,
    /// The number of declared versions, splits, keys, nodes and policies that are as they are declared.
    pub unchanged: usize,
    /// The parts of the cluster that the files do not name, and that stay.
    pub unnamed: Vec<Unnamed>,
    /// The parts that shall be removed, and cannot be yet.
    pub held: Vec<Held>,
    /// The declarations that cannot be compared, because the cluster has nothing of their name.
    pub problems: Vec<RepositoryProblem>,
}

/// A model that the files do not name, or a version of one that they name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unnamed {
    /// The model.
    pub name: ModelName,
    /// The version; `None` for all.
    pub version: Option<ModelVersion>,
}

/// A version that cannot be removed yet: requests that name no version still get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The model.
    pub name: ModelName,
    /// The version.
    pub version: ModelVersion,
    /// The part of the requests that it gets, in percent.
    pub share_pct: u32,
}

/// Compares what files declare with what a cluster has. With `prune`, models and versions that the files do not name are removed.
pub fn plan(fleet: &Fleet, cluster: &Cluster, prune: bool) -> Plan {
    let mut plan = Plan::default();
    if let (Some(declared), Some(there)) = (&fleet.policy, &cluster.policy) {
        plan.add(policy(declared, there));
    }
    for (name, model) in &fleet.models {
        plan.add_model(name, model, cluster);
    }
    for key in &fleet.keys {
        if let Some(keys) = &cluster.keys {
            match limits(key, keys) {
                Ok(step) => plan.add(step),
                Err(problem) => plan.problem("keys.json", problem),
            }
        }
    }
    for (name, cordoned) in &fleet.nodes {
        let Some(nodes) = &cluster.nodes else { break };
        match nodes.iter().find(|node| node.name == *name) {
            Some(node) => match node_step(node, *cordoned) {
                Ok(step) => plan.add(step),
                Err(problem) => plan.problem("nodes.json", problem),
            },
            None => plan.problem("nodes.json", format!("{name}: no node has this name")),
        }
    }
    plan.add_unnamed(fleet, cluster, prune);
    // Stable: within a rank the order is that of the files.
    plan.steps.sort_by_key(Step::rank);
    plan
}

impl Plan {
    /// Returns true if the cluster has what the files declare, and nothing that they do not name is to be removed.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.held.is_empty()
    }

    fn add(&mut self, step: Option<Step>) {
        match step {
            Some(step) => self.steps.push(step),
            None => self.unchanged += 1,
        }
    }

    fn problem(&mut self, place: &str, problem: String) {
        let place = place.to_owned();
        self.problems.push(RepositoryProblem { place, problem });
    }

    fn add_model(&mut self, name: &ModelName, model: &DeclaredModel, cluster: &Cluster) {
        for (version, declared) in &model.versions {
            let Some(registered) = cluster.version(name, *version) else {
                let new = Box::new(declared.registration.clone());
                let (change, fields) = (Change::Register(new), Vec::new());
                self.steps.push(Step { change, fields });
                continue;
            };
            let is_newest = cluster.has_no_newer(name, *version);
            match compare(registered, declared, is_newest) {
                Comparison::Replace(step) => self.steps.push(step),
                Comparison::Change(steps) if steps.is_empty() => self.unchanged += 1,
                Comparison::Change(steps) => self.steps.extend(steps),
            }
        }
        self.add_heir(name, model, cluster);
        if let Some(split) = &model.split {
            let there = cluster.versions(name).next();
            let mut change = split.clone();
            // What no version has yet is automatic and chosen by nothing.
            let (has, chosen) = there
                .map(|view| (view.split.clone(), view.sticky))
                .unwrap_or_default();
            change.split = change.split.filter(|split| *split != has);
            change.sticky = change.sticky.filter(|sticky| *sticky != chosen);
            let differs = change.split.is_some() || change.sticky.is_some();
            self.add(differs.then(|| {
                let of_model = Change::Split(name.clone(), Box::new(change.clone()));
                Step::new(of_model, &change, &there)
            }));
        }
    }

    /// Adds what belongs to a model's name where its newest version is one that the files do not name: that version has it, and leaves it to the one before
    /// when it is removed.
    fn add_heir(&mut self, name: &ModelName, model: &DeclaredModel, cluster: &Cluster) {
        let newest = cluster.versions(name).max_by_key(|view| view.version);
        let declared = model.versions.iter().next_back();
        if let (Some(newest), Some((version, declared))) = (newest, declared)
            && newest.version > *version
        {
            self.steps.extend(compare_name(newest, declared));
        }
    }

    /// Adds what the files do not name: to what is removed, or to what stays.
    fn add_unnamed(&mut self, fleet: &Fleet, cluster: &Cluster, prune: bool) {
        let names: BTreeSet<&ModelName> = cluster.models.iter().map(|view| &view.name).collect();
        for name in names {
            if !fleet.names(name, None) {
                self.remove(name, None, prune);
                continue;
            }
            for view in cluster.versions(name) {
                if fleet.names(name, Some(view.version)) {
                    continue;
                }
                if prune && view.share_pct > 0 {
                    self.held.push(Held {
                        name: name.clone(),
                        version: view.version,
                        share_pct: view.share_pct,
                    });
                } else {
                    self.remove(name, Some(view.version), prune);
                }
            }
        }
    }

    fn remove(&mut self, name: &ModelName, version: Option<ModelVersion>, prune: bool) {
        let name = name.clone();
        if prune {
            let (change, fields) = (Change::Remove(name, version), Vec::new());
            self.steps.push(Step { change, fields });
        } else {
            self.unnamed.push(Unnamed { name, version });
        }
    }
}

fn policy(declared: &PolicyChange, there: &PolicyView) -> Option<Step> {
    let change = PolicyChange {
        policy: declared
            .policy
            .clone()
            .filter(|policy| *policy != there.policy),
        options: declared.options.filter(|options| *options != there.options),
        discipline: declared
            .discipline
            .filter(|discipline| *discipline != there.discipline),
    };
    (change != PolicyChange::default())
        .then(|| Step::new(Change::Policy(change.clone()), &change, there))
}

/// Returns the step to the declared limits of a key; `None` if it has them.
fn limits(declared: &DeclaredKey, keys: &[KeyView]) -> Result<Option<Step>, String> {
    let (text, is_it): (_, fn(&KeyView) -> &String) = match &declared.key {
        KeyName::Id(id) => (id, |key| &key.id),
        KeyName::Name(name) => (name, |key| &key.name),
    };
    let found: Vec<&KeyView> = keys.iter().filter(|key| is_it(key) == text).collect();
    let key = match found[..] {
        [key] => key,
        [] => {
            return Err(format!(
                "{text}: there is no such key: make it with packhorse keys create, which shows its secret once"
            ));
        }
        _ => {
            return Err(format!(
                "{text}: {} keys have this name: name each by its id",
                found.len()
            ));
        }
    };
    let declared = declared.limits.clone();
    let limits = KeyChange {
        rate_rps: declared.rate_rps.filter(|rate| *rate != key.rate_rps),
        max_in_flight: declared
            .max_in_flight
            .filter(|limit| *limit != key.max_in_flight),
        model_limits: declared
            .model_limits
            .filter(|limits| *limits != key.model_limits),
    };
    let differs = limits != KeyChange::default();
    Ok(differs.then(|| {
        let change = Change::Key {
            id: key.id.clone(),
            name: key.name.clone(),
            limits: limits.clone(),
        };
        Step::new(change, &limits, key)
    }))
}

/// Returns the step that cordons a node or takes that back; `None` if it is as declared. A node that drains gets no new replicas either.
fn node_step(node: &NodeView, cordoned: bool) -> Result<Option<Step>, String> {
    let is_cordoned = match node.state {
        NodeState::Ready => false,
        NodeState::Cordoned | NodeState::Draining => true,
        NodeState::Lost => {
            return Err(format!(
                "{}: the node is lost: what it is when it returns is not known",
                node.name
            ));
        }
    };
    if is_cordoned == cordoned {
        return Ok(None);
    }
    let state = if cordoned { "cordoned" } else { "open" };
    let change = Change::Node(node.name.clone(), cordoned);
    let set = serde_json::json!({ "state": state });
    Ok(Some(Step::new(change, &set, node)))
}
