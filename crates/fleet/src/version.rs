//! A version of a model, as it is declared and as it is registered.

use std::collections::BTreeSet;

use packhorse_api::{ModelChange, ModelRegistration, ModelView};

use crate::{
    declared::DeclaredVersion,
    step::{Change, FieldChange, Step, changed},
};

/// The difference between a version that files declare and the registered one.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// The program or the signature differs: the version is to be registered again.
    Replace(Step),
    /// Fields differ, or nothing if there are no steps: those of the version, and the family, which belongs to all versions.
    Change(Vec<Step>),
}

/// Compares a version with the registered one. Rate, priority, least number of replicas and family are those of the newest version, which this may be.
pub fn compare(registered: &ModelView, declared: &DeclaredVersion, is_newest: bool) -> Comparison {
    let mut wanted = declared.registration.clone();
    complete(&mut wanted, &declared.said, registered);
    if !is_same_program(registered, &wanted) {
        let fields = program_changes(registered, &wanted);
        let change = Change::Replace(Box::new(wanted));
        return Comparison::Replace(Step { change, fields });
    }
    Comparison::Change(changes(registered, &wanted, is_newest))
}

/// Returns the changes of what belongs to a model's name, from the newest version that is declared and a newer one that is registered.
pub(crate) fn compare_name(newest: &ModelView, declared: &DeclaredVersion) -> Vec<Step> {
    let mut wanted = declared.registration.clone();
    complete(&mut wanted, &declared.said, newest);
    // These are the version's own.
    wanted.slo_ms = newest.slo_ms;
    wanted.queue_limit = newest.queue_limit;
    wanted.max_cold_wait_ms = newest.max_cold_wait_ms;
    wanted.cache = newest.cache;
    if wanted.family == newest.family {
        wanted.accuracy = newest.accuracy;
    }
    changes(newest, &wanted, true)
}

/// Has a registration be what is registered, where its file, which says these fields, does not say anything.
fn complete(wanted: &mut ModelRegistration, said: &BTreeSet<String>, registered: &ModelView) {
    let is_unsaid = |field: &str| !said.contains(field);
    if is_unsaid("rate_rps") {
        wanted.rate_rps = registered.rate_rps;
    }
    if is_unsaid("rate") {
        wanted.rate = Some(registered.rate);
    }
    if is_unsaid("priority") {
        wanted.priority = Some(registered.priority);
    }
    if is_unsaid("min_replicas") {
        wanted.min_replicas = Some(registered.min_replicas);
    }
    if is_unsaid("queue_limit") {
        wanted.queue_limit = registered.queue_limit;
    }
    if is_unsaid("max_cold_wait_ms") {
        wanted.max_cold_wait_ms = registered.max_cold_wait_ms;
    }
    if is_unsaid("cache") {
        wanted.cache = registered.cache;
    }
    if is_unsaid("family") {
        wanted.family.clone_from(&registered.family);
    }
    if is_unsaid("accuracy") {
        wanted.accuracy = registered.accuracy;
    }
}

/// Returns true if what is registered needs no new program.
fn is_same_program(registered: &ModelView, wanted: &ModelRegistration) -> bool {
    Some(registered.artifact) == wanted.artifact
        && registered.max_batch_size == wanted.max_batch_size
        && registered.inputs == wanted.inputs
        && registered.outputs == wanted.outputs
        && registered.preprocess == wanted.preprocess
        && registered.postprocess == wanted.postprocess
}

/// Returns what differs in a version that is registered again. Fields of both that no file names are the same.
fn program_changes(registered: &ModelView, wanted: &ModelRegistration) -> Vec<FieldChange> {
    let mut changes = changed(wanted, registered);
    // It is written by its name in a view and left out of a registration.
    changes.retain(|change| !(change.old.is_null() && change.new.is_null()));
    changes
}

/// Returns what differs in SLO, rate, priority, least number of replicas, queue limit, wait for a load, cache, family and accuracy.
fn changes(registered: &ModelView, wanted: &ModelRegistration, is_newest: bool) -> Vec<Step> {
    let rate = wanted.rate.unwrap_or_default();
    let priority = wanted.priority.unwrap_or_default();
    let min_replicas = wanted.min_replicas.unwrap_or_default();
    let mut change = ModelChange {
        slo_ms: differing(wanted.slo_ms, &registered.slo_ms),
        rate_rps: differing(wanted.rate_rps, &registered.rate_rps).filter(|_| is_newest),
        rate: differing(rate, &registered.rate).filter(|_| is_newest),
        priority: differing(priority, &registered.priority).filter(|_| is_newest),
        min_replicas: differing(min_replicas, &registered.min_replicas).filter(|_| is_newest),
        queue_limit: differing(wanted.queue_limit, &registered.queue_limit),
        max_cold_wait_ms: differing(wanted.max_cold_wait_ms, &registered.max_cold_wait_ms),
        cache: differing(wanted.cache, &registered.cache),
        accuracy: wanted
            .accuracy
            .filter(|_| wanted.accuracy != registered.accuracy && registered.family.is_some()),
        ..ModelChange::default()
    };
    let (name, version) = (&registered.name, registered.version);
    let family = differing(wanted.family.clone(), &registered.family).filter(|_| is_newest);
    if family.is_some() {
        // It goes or comes with the family.
        change.accuracy = None;
    }
    let mut steps = Vec::new();
    if change != ModelChange::default() {
        let of_version = Change::Model(name.clone(), Some(version), Box::new(change.clone()));
        steps.push(Step::new(of_version, &change, registered));
    }
    if let Some(family) = family {
        // It belongs to all versions.
        let change = ModelChange {
            accuracy: wanted.accuracy.filter(|_| family.is_some()),
            family: Some(family),
            ..ModelChange::default()
        };
        let of_all = Change::Model(name.clone(), None, Box::new(change.clone()));
        steps.push(Step::new(of_all, &change, registered));
    }
    steps
}

fn differing<T: PartialEq>(wanted: T, registered: &T) -> Option<T> {
    (wanted != *registered).then_some(wanted)
}
