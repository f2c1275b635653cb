//! Deadlocks between new replicas and earlier ones that wait for each other, and the earlier replicas that resolve them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, ReplicaId, ReplicaState};

use super::{EarlierReplica, PlacedReplica, RolloutInput};

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
/// preferably one whose model is served without it. It is drained only if no other replica of its model is starting.
pub(super) fn victims(
    input: &RolloutInput,
    earlier: &[EarlierReplica],
    started: &BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    let progress = progress(input, started);
    let progress_of =
        |e: &EarlierReplica| progress.get(e.replica.model()).copied().unwrap_or_default();
    let mut gone: BTreeSet<ReplicaId> = earlier
        .iter()
        .filter(|e| e.draining)
        .map(|e| e.replica.id)
        .collect();
    let mut victims = BTreeSet::new();
    let mut given_up = BTreeSet::new();
    loop {
        let will_serve = project(input, earlier, &mut gone);
        let Some(stuck) = input
            .plan
            .iter()
            .filter(|p| !will_serve.contains(&p.id) && !given_up.contains(&p.id))
            .min_by_key(|p| p.id)
        else {
            return victims;
        };
        let victim = earlier
            .iter()
            .filter(|e| e.replica.device == stuck.device)
            .filter(|e| !gone.contains(&e.replica.id) && !progress_of(e).failing)
            .min_by_key(|e| (is_only_server(input, earlier, &gone, e), e.replica.id));
        match victim {
            Some(victim) => {
                gone.insert(victim.replica.id);
                if !progress_of(victim).starting {
                    victims.insert(victim.replica.id);
                }
            }
            None => {
                given_up.insert(stuck.id);
            }
        }
    }
}

/// Returns the progress of each model with a started replica in the plan.
fn progress<'a>(
    input: &'a RolloutInput,
    started: &BTreeSet<ReplicaId>,
) -> BTreeMap<&'a ModelId, Progress> {
    let mut models: BTreeMap<&ModelId, Progress> = BTreeMap::new();
    for p in input.plan.iter().filter(|p| started.contains(&p.id)) {
        let model = models.entry(p.model()).or_default();
        match input.status(p).map(|status| status.state) {
            Some(ReplicaState::Failed | ReplicaState::BackingOff) => model.failing = true,
            _ if input.serves(p) => {}
            _ => model.starting = true,
        }
    }
    models
}

/// Returns the replicas of the plan that will serve if all started replicas do, and adds the earlier replicas that will have gone
/// by then to `gone`.
fn project(
    input: &RolloutInput,
    earlier: &[EarlierReplica],
    gone: &mut BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    loop {
        let will_serve = input.started(earlier, gone);
        let kept: BTreeSet<&ModelId> = input
            .plan
            .iter()
            .filter(|p| !will_serve.contains(&p.id))
            .map(PlacedReplica::model)
            .collect();
        let before = gone.len();
        gone.extend(
            earlier
                .iter()
                .filter(|e| !kept.contains(e.replica.model()))
                .map(|e| e.replica.id),
        );
        if gone.len() == before {
            return will_serve;
        }
    }
}

/// Returns true if no other replica serves the replica's model.
fn is_only_server(
    input: &RolloutInput,
    earlier: &[EarlierReplica],
    gone: &BTreeSet<ReplicaId>,
    victim: &EarlierReplica,
) -> bool {
    let model = victim.replica.model();
    let stays = earlier
        .iter()
        .filter(|e| e.replica.id != victim.replica.id && !gone.contains(&e.replica.id))
        .map(|e| &e.replica);
    !input
        .plan
        .iter()
        .chain(stays)
        .any(|replica| replica.model() == model && input.serves(replica))
}
