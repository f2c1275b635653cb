//! Where new replicas and earlier ones would wait for each other for ever, and which earlier one gives way.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, ReplicaId, ReplicaState};

use super::{EarlierReplica, PlacedReplica, Situation};

/// How the plan's replicas of one model are doing.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// One is on its way to serve: waiting for it helps.
    coming: bool,
    /// One does not start: the earlier ones are all the model has.
    failing: bool,
}

/// The earlier replicas that must drain now although their successors do not serve yet, because memory does not hold both.
///
/// Whatever is started is expected to serve, and whatever is superseded to go; where that alone lets every replica of the plan
/// start in the end, nobody gives way. Else an earlier replica on the device of the first replica that cannot start does: one
/// whose model is still served without it, if there is one. It is drained only when nothing else of its model is on its way.
pub(super) fn victims(
    situation: &Situation,
    earlier: &[EarlierReplica],
    started: &BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    let progress = progress(situation, started);
    let of = |e: &EarlierReplica| progress.get(e.replica.model()).copied().unwrap_or_default();
    let mut gone: BTreeSet<ReplicaId> = earlier
        .iter()
        .filter(|e| e.draining)
        .map(|e| e.replica.id)
        .collect();
    let mut victims = BTreeSet::new();
    let mut given_up = BTreeSet::new();
    loop {
        let will_serve = foresee(situation, earlier, &mut gone);
        let Some(stuck) = situation
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
            .filter(|e| !gone.contains(&e.replica.id) && !of(e).failing)
            .min_by_key(|e| (is_last(situation, earlier, &gone, e), e.replica.id));
        match victim {
            Some(victim) => {
                gone.insert(victim.replica.id);
                if !of(victim).coming {
                    victims.insert(victim.replica.id);
                }
            }
            None => {
                given_up.insert(stuck.id);
            }
        }
    }
}

fn progress<'a>(
    situation: &'a Situation,
    started: &BTreeSet<ReplicaId>,
) -> BTreeMap<&'a ModelId, Progress> {
    let mut models: BTreeMap<&ModelId, Progress> = BTreeMap::new();
    for p in situation.plan.iter().filter(|p| started.contains(&p.id)) {
        let model = models.entry(p.model()).or_default();
        match situation.status(p).map(|status| status.state) {
            Some(ReplicaState::Failed | ReplicaState::BackingOff) => model.failing = true,
            _ if situation.serves(p) => {}
            _ => model.coming = true,
        }
    }
    models
}

/// The replicas of the plan that will serve if everything started does, and `gone` grown by the earlier ones that will go then.
fn foresee(
    situation: &Situation,
    earlier: &[EarlierReplica],
    gone: &mut BTreeSet<ReplicaId>,
) -> BTreeSet<ReplicaId> {
    loop {
        let will_serve = situation.started(earlier, gone);
        let kept: BTreeSet<&ModelId> = situation
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

/// Whether nothing else serves the replica's model.
fn is_last(
    situation: &Situation,
    earlier: &[EarlierReplica],
    gone: &BTreeSet<ReplicaId>,
    victim: &EarlierReplica,
) -> bool {
    let model = victim.replica.model();
    let stays = earlier
        .iter()
        .filter(|e| e.replica.id != victim.replica.id && !gone.contains(&e.replica.id))
        .map(|e| &e.replica);
    !situation
        .plan
        .iter()
        .chain(stays)
        .any(|replica| replica.model() == model && situation.serves(replica))
}
