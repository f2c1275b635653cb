//! Deadlocks between new replicas and earlier ones that wait for each other, and the earlier replicas that resolve them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, ReplicaId, ReplicaState};

use super::observed::{EarlierReplica, ObservedReplica, StepInput};

/// The progress of the plan's started replicas of one model.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// True if a replica is starting, so that waiting for it helps.
    starting: bool,
    /// True if a replica does not start, so that only earlier replicas serve the model.
    failing: bool,
}

/// Returns the earlier replicas that must drain although their successors do not serve yet, because memory does not hold both.
///
/// Started replicas are assumed to serve at some time, and superseded ones to go. If every replica of the plan can start under this
/// assumption, there is no victim. Otherwise an earlier replica on the device of the first replica that cannot start is chosen,
/// preferably one whose model is served without it, and then the one whose model loses least. It is drained only if no other replica of
/// its model is starting or draining, so that a model on several devices is replaced on one after the other.
pub(super) fn victims(
    input: &StepInput<'_>,
    earlier: &[EarlierReplica<'_>],
    started: &BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    let progress = progress(input, started);
    let progress_of = |e: &EarlierReplica<'_>| {
        progress
            .get(e.observed.model())
            .copied()
            .unwrap_or_default()
    };
    // A worker keeps its memory until its last replica drains.
    let staying = earlier.iter().filter(|e| !e.draining);
    let staying: BTreeSet<ReplicaId> = staying.map(EarlierReplica::worker).collect();
    let draining = || earlier.iter().filter(|e| !staying.contains(&e.worker()));
    let mut gone: BTreeSet<ReplicaId> = draining().map(EarlierReplica::id).collect();
    // In the place of a replica that leaves, its successor will start.
    let mut leaving: BTreeSet<&ModelId> = draining().map(|e| e.observed.model()).collect();
    let mut victims = BTreeSet::new();
    let mut given_up = BTreeSet::new();
    loop {
        let will_serve = project(input, earlier, &mut gone);
        let Some(stuck) = input
            .planned
            .iter()
            .filter(|p| !will_serve.contains(&p.replica.id) && !given_up.contains(&p.replica.id))
            .min_by_key(|p| p.replica.id)
        else {
            return victims;
        };
        let victim = earlier
            .iter()
            .filter(|e| e.observed.device() == stuck.device())
            .filter(|e| !gone.contains(&e.id()) && !progress_of(e).failing)
            .filter(|e| !successors(input, e).any(|s| progress.get(s).is_some_and(|p| p.failing)))
            .min_by_key(|e| {
                let loss = input.losses.get(e.observed.model()).copied();
                let only = is_only_server(input, earlier, &gone, e);
                (only, loss.unwrap_or_default(), e.id())
            });
        match victim {
            Some(victim) => {
                // Its worker ends with all that it runs.
                let of_worker = || earlier.iter().filter(|e| e.worker() == victim.worker());
                gone.extend(of_worker().map(EarlierReplica::id));
                let waits = of_worker()
                    .any(|e| progress_of(e).starting || leaving.contains(e.observed.model()));
                if !waits {
                    leaving.extend(of_worker().map(|e| e.observed.model()));
                    victims.extend(of_worker().map(EarlierReplica::id));
                }
            }
            None => {
                given_up.insert(stuck.replica.id);
            }
        }
    }
}

/// Returns the progress of each model with a started replica in the plan.
fn progress<'a>(
    input: &'a StepInput<'_>,
    started: &BTreeSet<ReplicaId>,
) -> BTreeMap<&'a ModelId, Progress> {
    let mut models: BTreeMap<&ModelId, Progress> = BTreeMap::new();
    for p in input
        .planned
        .iter()
        .filter(|p| started.contains(&p.replica.id))
    {
        let model = models.entry(p.model()).or_default();
        match p.status().map(|status| status.state) {
            Some(ReplicaState::Failed | ReplicaState::BackingOff) => model.failing = true,
            _ if p.serves() => {}
            _ => model.starting = true,
        }
    }
    models
}

/// Returns the replicas of the plan that will serve if all started replicas do, and adds the earlier replicas that will have gone
/// by then to `gone`.
fn project(
    input: &StepInput<'_>,
    earlier: &[EarlierReplica<'_>],
    gone: &mut BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    loop {
        let will_serve = input.started(earlier, gone);
        let kept: BTreeSet<&ModelId> = input
            .planned
            .iter()
            .filter(|p| !will_serve.contains(&p.replica.id))
            .map(ObservedReplica::model)
            .collect();
        let planned: BTreeSet<&ModelId> =
            input.planned.iter().map(ObservedReplica::model).collect();
        let before = gone.len();
        let stays = |e: &&EarlierReplica<'_>| {
            let mut successors = successors(input, e);
            kept.contains(e.observed.model())
                || successors.any(|s| !planned.contains(s) || kept.contains(s))
        };
        let staying: BTreeSet<ReplicaId> = earlier
            .iter()
            .filter(|e| !gone.contains(&e.id()))
            .filter(stays)
            .map(EarlierReplica::worker)
            .collect();
        let leave = earlier.iter().filter(|e| !staying.contains(&e.worker()));
        gone.extend(leave.map(EarlierReplica::id));
        if gone.len() == before {
            return will_serve;
        }
    }
}

/// Returns the versions that the model of an earlier replica hands its requests over to.
fn successors<'a>(
    input: &'a StepInput<'_>,
    earlier: &EarlierReplica<'_>,
) -> impl Iterator<Item = &'a ModelId> {
    let successors = input.successors.get(earlier.observed.model());
    successors.into_iter().flatten()
}

/// Returns true if no other replica serves the replica's model.
fn is_only_server(
    input: &StepInput<'_>,
    earlier: &[EarlierReplica<'_>],
    gone: &BTreeSet<ReplicaId>,
    victim: &EarlierReplica<'_>,
) -> bool {
    let model = victim.observed.model();
    let stays = earlier
        .iter()
        .filter(|e| e.id() != victim.id() && !gone.contains(&e.id()))
        .map(|e| &e.observed);
    !input
        .planned
        .iter()
        .chain(stays)
        .any(|replica| replica.model() == model && replica.serves())
}
