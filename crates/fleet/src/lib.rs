//! A fleet that files declare: models with their versions and splits, the limits of API keys, nodes and the policy.
//!
//! [`plan()`] compares it with what a cluster has, and returns the steps that make the cluster have it, in an order in which each of them is safe. It reads no
//! file and calls no gateway: `packhorse apply` and `packhorse serve` read the files, show the plan and carry it out.

mod cluster;
mod declared;
mod documents;
mod plan;
mod step;
mod version;

pub use self::{
    cluster::Cluster,
    declared::{DeclaredKey, DeclaredModel, DeclaredVersion, Fleet, KeyName},
    documents::{DocumentError, read_keys, read_nodes, read_policy, read_split},
    plan::{Held, Plan, Unnamed, plan},
    step::{Change, FieldChange, Step},
    version::{Comparison, compare},
};
