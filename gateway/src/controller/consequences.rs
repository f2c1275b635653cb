//! The consequences of an admin's change: the models from which it takes planned goodput. They are found by planning twice beside the
//! controller, without the change and with it, so that what has happened since the current plan was made is on both sides.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice::from_ref,
    time::Duration,
};

use packhorse_api::{Consequence, Consequences};
use packhorse_cluster::{ModelId, ModelName, ReplicaSpec};
use packhorse_control::{ChangedInput, DryRun, NoProfile, PlanningError};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    permits::{Busy, run_with_permit},
    solver::{Preview, preview},
};

/// The longest time for which the answer to a change waits for its consequences.
const LIMIT: Duration = Duration::from_secs(2);
/// The part of its planned goodput that a model loses at least, if the loss counts. Less is within the error of estimates.
const LEAST_LOSS: f64 = 0.01;

/// The reason why the consequences of a change are not known.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    /// Too many previews and explanations run.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The plans are not made in time.
    #[error("the plans without the change and with it were not made within {} ms", LIMIT.as_millis())]
    Slow,
    /// The policy would have more time than it had here.
    #[error("{0}")]
    Fallback(String),
    /// The change registers a model that cannot be planned for.
    #[error(transparent)]
    NoProfile(#[from] NoProfile),
    /// There is no plan.
    #[error(transparent)]
    NoPlan(#[from] PlanningError),
    /// The policy panicked.
    #[error("the policy failed: {0}")]
    Panicked(String),
}

/// A checked change, before it is made.
pub struct Rehearsal {
    prepared: Result<Prepared, Busy>,
}

/// The means to find the consequences of a change.
struct Prepared {
    /// The copy to make the change in.
    dry_run: DryRun,
    /// The permit to plan beside the controller.
    permit: OwnedSemaphorePermit,
    /// The time limit of a policy.
    budget: Duration,
}

impl Rehearsal {
    pub(super) fn new(dry_run: DryRun, permit: OwnedSemaphorePermit, budget: Duration) -> Self {
        let prepared = Ok(Prepared {
            dry_run,
            permit,
            budget,
        });
        Self { prepared }
    }

    /// Creates the rehearsal of a change whose consequences cannot be found, because there is no permit.
    pub(super) fn refused(busy: Busy) -> Self {
        let prepared = Err(busy);
        Self { prepared }
    }

    /// Returns the consequences of the change. They are not known if that takes too long.
    pub async fn consequences(self) -> Consequences {
        let Prepared {
            dry_run,
            permit,
            budget,
        } = match self.prepared {
            Ok(prepared) => prepared,
            Err(busy) => return Consequences::unknown(&busy),
        };
        let found = run_with_permit(permit, move || find(dry_run, budget));
        let found = async { found.await.unwrap_or_else(|e| Err(Unknown::Panicked(e))) };
        within(LIMIT, found).await
    }
}

/// Returns consequences if they are found in time, else the reason why they are not known.
async fn within(
    limit: Duration,
    found: impl Future<Output = Result<Vec<Consequence>, Unknown>>,
) -> Consequences {
    match tokio::time::timeout(limit, found).await {
        Ok(Ok(consequences)) => Consequences::known(consequences),
        Ok(Err(unknown)) => Consequences::unknown(&unknown),
        Err(_) => Consequences::unknown(&Unknown::Slow),
    }
}

/// Plans without the change and with it, each in half of the time limit, and compares the plans.
fn find(dry_run: DryRun, budget: Duration) -> Result<Vec<Consequence>, Unknown> {
    let Some(ChangedInput { before, after }) = dry_run.planning_inputs()? else {
        return Ok(Vec::new());
    };
    let shorter = budget.min(LIMIT / 2);
    let plan = |input| -> Result<Preview, Unknown> {
        let preview = preview(input, shorter)?;
        match preview.draft.fallback {
            Some(fallback) if shorter < budget => Err(Unknown::Fallback(fallback)),
            _ => Ok(preview),
        }
    };
    Ok(losses(&plan(&before)?, &plan(&after)?))
}

/// The part of the requests for a model or family that a plan serves.
#[derive(Debug, Default)]
struct Served {
    rate: f64,
    goodput: f64,
    shortfall: Option<String>,
}

/// Returns the models and families that the second plan serves less of than the first, although they ask for it.
fn losses(before: &Preview, after: &Preview) -> Vec<Consequence> {
    let ended = ended(before, after);
    let mut then = served(before);
    for spec in &ended {
        if let Some(served) = then.get_mut(demand_name(before, &spec.model)) {
            let all = served.goodput + before.input.throughput(from_ref(*spec), &spec.model);
            served.goodput = all.min(served.rate);
        }
    }
    let mut now = served(after);
    let losses = then
        .into_iter()
        .filter_map(|(model, Served { goodput, .. })| {
            let left = now.remove(&model).unwrap_or_default();
            let asked = goodput.min(left.rate);
            (left.goodput < asked * (1.0 - LEAST_LOSS)).then(|| Consequence {
                before_rps: goodput,
                after_rps: left.goodput,
                reason: reason(after, &model, left.shortfall, &ended),
                model,
            })
        });
    losses.collect()
}

/// Returns what a plan serves of each model and family.
fn served(plan: &Preview) -> BTreeMap<ModelName, Served> {
    let mut all: BTreeMap<ModelName, Served> = BTreeMap::new();
    for forecast in &plan.draft.forecasts {
        let name = demand_name(plan, &forecast.model);
        let served = all.entry(name.clone()).or_default();
        served.rate += forecast.rate.get();
        served.goodput += forecast.goodput.get();
        if served.shortfall.is_none() {
            served.shortfall.clone_from(&forecast.shortfall);
        }
    }
    all
}

/// Returns the name under which requests for a model count: that of its family if it has one.
fn demand_name<'a>(plan: &'a Preview, model: &'a ModelId) -> &'a ModelName {
    let family = plan.input.families.iter().find(|family| {
        let mut ids = family.variants.iter().flat_map(|variant| &variant.shares);
        ids.any(|(id, _)| id == model)
    });
    family.map_or(&model.name, |family| &family.name)
}

/// Returns the replicas that serve although no plan has a place for them, and that stay without the change and end with it.
fn ended<'a>(before: &'a Preview, after: &Preview) -> Vec<&'a ReplicaSpec> {
    let retained = before.input.retained.iter();
    let ended = retained.filter(|spec| {
        before.draft.replicas.contains(spec) && !after.draft.replicas.contains(spec)
    });
    ended.collect()
}

/// Returns the reason why a plan serves less of a model, what ends of it, and what the plan keeps of it until it has a place.
fn reason(
    plan: &Preview,
    name: &ModelName,
    shortfall: Option<String>,
    ended: &[&ReplicaSpec],
) -> String {
    let reason = shortfall.unwrap_or_else(|| "the plan serves fewer of its requests".to_owned());
    let of_model = |spec: &&ReplicaSpec| demand_name(plan, &spec.model) == name;
    let retained = plan.input.retained.iter();
    let retained = retained.filter(|spec| plan.draft.replicas.contains(spec));
    if let Some(nodes) = nodes_of(retained.filter(of_model)) {
        return format!(
            "{reason}; its replicas on {nodes} stay until another node has room for them"
        );
    }
    match nodes_of(ended.iter().copied().filter(of_model)) {
        Some(nodes) => format!("{reason}; its replicas on {nodes}, which still serve, end"),
        None => reason,
    }
}

/// Returns the names of the replicas' nodes; `None` if there are no replicas.
fn nodes_of<'a>(replicas: impl Iterator<Item = &'a ReplicaSpec>) -> Option<String> {
    let nodes: BTreeSet<&str> = replicas.map(|spec| spec.device.node().as_str()).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    (!nodes.is_empty()).then(|| nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plans_that_take_too_long_are_not_waited_for() {
        let never = std::future::pending();
        let slow = Consequences::unknown(
            &"the plans without the change and with it were not made within 2000 ms",
        );
        assert_eq!(within(Duration::from_millis(1), never).await, slow);
        let found = std::future::ready(Ok(Vec::new()));
        assert_eq!(within(LIMIT, found).await, Consequences::known(Vec::new()));
    }

    #[tokio::test]
    async fn every_reason_for_unknown_consequences_has_its_sentence() {
        let model = "m:2".parse().unwrap();
        for (unknown, sentence) in [
            (
                Unknown::Busy(Busy),
                "at most 4 previews and explanations run at once; retry in a few seconds",
            ),
            (
                Unknown::NoProfile(NoProfile(model)),
                "model m:2 has no profile yet, so that there is no plan with it; it takes its place once it is measured or estimated",
            ),
            (
                Unknown::Panicked("overflow".to_owned()),
                "the policy failed: overflow",
            ),
        ] {
            let found = std::future::ready(Err(unknown));
            assert_eq!(within(LIMIT, found).await, Consequences::unknown(&sentence));
        }
    }
}
