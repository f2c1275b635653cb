//! When the next plan is made, and what is adopted of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_api::{PolicyChange, PolicyView};
use packhorse_cluster::Generation;
use packhorse_control::rollout::{EarlierReplica, PlacedReplica, Placement, assign_ids};
use packhorse_placement::UnknownPolicy;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    cluster::{Cluster, CurrentPlan, by_model},
    nodes::Lease,
    question::{Drafted, Solved},
};
use crate::store::{Settings, StoreError, StoredPlan};

/// Changes that come within so long of each other are planned for together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A plan that could not be stored is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// When to plan next, and the plan that is being made.
#[derive(Default)]
pub(super) struct Planning {
    reasons: Vec<String>,
    due: Option<Instant>,
    solve: Option<JoinHandle<Solved>>,
    /// Why the last attempt gave no plan.
    pub(super) trouble: Option<String>,
}

/// Why policy or discipline are not changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// There is no such policy.
    #[error("policy: {0}")]
    Unknown(#[from] UnknownPolicy),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Planning {
    /// Whether a plan is being made or will be.
    pub(super) fn is_pending(&self) -> bool {
        self.due.is_some() || self.solve.is_some()
    }

    fn take_reason(&mut self) -> String {
        const SPELT_OUT: usize = 3;
        let reasons = std::mem::take(&mut self.reasons);
        let more = reasons.len().saturating_sub(SPELT_OUT);
        let text = reasons[..reasons.len() - more].join(", ");
        match more {
            0 => text,
            more => format!("{text}, and {more} more changes"),
        }
    }
}

impl Cluster {
    /// Something has changed that a plan depends on.
    pub(super) fn request_plan(&mut self, reason: String) {
        if !self.planning.reasons.contains(&reason) {
            self.planning.reasons.push(reason);
        }
        self.planning
            .due
            .get_or_insert_with(|| Instant::now() + DEBOUNCE);
        self.changed = true;
    }

    /// When the next plan is to be made, if that only needs the time to come.
    pub(super) fn planning_due(&self) -> Option<Instant> {
        let due = self.planning.due?;
        if self.planning.solve.is_some() {
            None
        } else if self.is_settled() {
            Some(due)
        } else {
            Some(due.max(self.settled_by))
        }
    }

    /// Whether the nodes that the plan uses have reported since the gateway's start. Until then a plan would move what may well
    /// be where it should.
    fn is_settled(&self) -> bool {
        let mut used = self.plan.replicas.iter().map(|r| r.device.node());
        used.all(|node| {
            let node = self.nodes.get(node);
            node.is_none_or(|node| node.report.is_some() || node.lease == Lease::Lost)
        })
    }

    /// Begins to plan, if it is time.
    pub(super) fn plan_if_due(&mut self, now: Instant) {
        if self.planning_due().is_none_or(|due| due > now) {
            return;
        }
        self.planning.due = None;
        let reason = self.planning.take_reason();
        let question = self.question(self.policy, reason);
        self.observing.plan_asked();
        let budget = self.config.solve_budget;
        self.planning.solve = Some(tokio::task::spawn_blocking(move || question.solve(budget)));
    }

    /// Waits for the plan that is being made; for ever, if there is none.
    pub(super) async fn solved(&mut self) -> Solved {
        let Some(solve) = &mut self.planning.solve else {
            return std::future::pending().await;
        };
        let solved = solve.await;
        self.planning.solve = None;
        solved.unwrap_or_else(|e| Solved {
            reason: String::new(),
            result: Err(format!("the policy {} failed: {e}", self.policy.name)),
        })
    }

    /// Makes the answer the current plan, if it is one and places anything differently.
    pub(super) async fn adopt(&mut self, solved: Solved) {
        self.changed = true;
        let draft = match solved.result {
            Ok(draft) => draft,
            Err(trouble) => {
                tracing::error!(trouble, "no new plan; the current one stays");
                self.planning.trouble = Some(trouble);
                return;
            }
        };
        if let Some(note) = &draft.note {
            tracing::warn!(note, "planned by another policy than was asked");
        }
        self.planning.trouble.clone_from(&draft.note);
        let newest = self.plan.stored.as_ref().map(|plan| plan.generation);
        let generation = Generation(newest.map_or(1, |newest| newest.0 + 1));
        let (drafted, replicas) = self.identified(generation, draft.replicas);
        let ids: BTreeSet<_> = replicas.iter().map(|replica| replica.id).collect();
        let unchanged = ids == self.plan.replicas.iter().map(|r| r.id).collect()
            && self.has_cycles_of(&drafted, &replicas);
        if unchanged && (newest.is_some() || self.models.is_empty()) {
            self.plan.forecasts = by_model(&draft.models);
            return;
        }
        let stored = StoredPlan {
            generation,
            policy: draft.policy.to_owned(),
            reason: solved.reason.clone(),
            solve_ms: draft.solve_ms,
            created_ms: StoredPlan::now_ms(),
            replicas: drafted
                .iter()
                .zip(&replicas)
                .map(|(drafted, placed)| drafted.stored(placed.id))
                .collect(),
            models: draft.models,
        };
        if let Err(e) = self.store.insert_plan(&stored).await {
            tracing::error!(error = %e, "cannot store the new plan; the current one stays");
            self.planning.trouble = Some("the new plan cannot be stored".to_owned());
            self.request_plan(solved.reason);
            self.planning.due = Some(Instant::now() + RETRY);
            return;
        }
        tracing::info!(
            plan.generation = generation.0,
            plan.replicas = replicas.len(),
            plan.policy = draft.policy,
            solve_ms = draft.solve_ms,
            reason = solved.reason,
            "adopted a new plan"
        );
        let old = std::mem::take(&mut self.plan.replicas);
        let left = old.into_iter().filter(|replica| !ids.contains(&replica.id));
        self.earlier.extend(left.map(|replica| EarlierReplica {
            replica,
            draining: false,
        }));
        self.published.outdated = true;
        self.plan = CurrentPlan {
            forecasts: by_model(&stored.models),
            stored: Some(stored),
            replicas,
        };
    }

    /// Whether the stored plan shares devices in time as a draft does.
    fn has_cycles_of(&self, drafted: &[Drafted], replicas: &[PlacedReplica]) -> bool {
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let stored: BTreeMap<_, _> = stored.map(|r| (r.id, r.duty_cycle_ms)).collect();
        let mut drafted = drafted.iter().zip(replicas);
        drafted.all(|(drafted, placed)| stored.get(&placed.id) == Some(&drafted.duty_cycle_ms()))
    }

    /// Gives the replicas of a draft identities; those whose model has gone or changed meanwhile are left out.
    fn identified(
        &self,
        generation: Generation,
        mut drafted: Vec<Drafted>,
    ) -> (Vec<Drafted>, Vec<PlacedReplica>) {
        drafted.retain(|d| {
            self.models
                .get(&d.model)
                .is_some_and(|m| m.failure.is_none())
        });
        let placements: Vec<Placement> = drafted
            .iter()
            .map(|drafted| Placement {
                program: Arc::clone(&self.models[&drafted.model].program),
                device: drafted.device.clone(),
                device_memory: drafted.device_memory,
                batch_size: drafted.batch_size,
                compute_share: drafted.compute_share,
                memory: drafted.memory,
            })
            .collect();
        let earlier = self.earlier.iter().filter(|earlier| !earlier.draining);
        let existing = self
            .plan
            .replicas
            .iter()
            .chain(earlier.map(|earlier| &earlier.replica));
        let replicas = assign_ids(generation, &placements, existing);
        (drafted, replicas)
    }

    /// How models are placed and requests dispatched.
    pub(super) fn policy_view(&self) -> PolicyView {
        super::views::policy_view(self.policy, self.options, self.discipline)
    }

    /// Changes how models are placed and requests dispatched.
    pub(super) async fn change_policy(
        &mut self,
        change: PolicyChange,
    ) -> Result<PolicyView, PolicyError> {
        let policy = match &change.policy {
            Some(name) => packhorse_placement::policy(name)?,
            None => self.policy,
        };
        let settings = Settings {
            policy: change.policy,
            options: change.options,
            discipline: change.discipline,
        };
        self.store.put_settings(&settings).await?;
        if policy.name != self.policy.name {
            self.policy = policy;
            self.request_plan(format!("the policy became {}", policy.name));
        }
        if let Some(options) = change.options
            && options != self.options
        {
            self.options = options;
            self.request_plan("the policy's options changed".to_owned());
        }
        if let Some(discipline) = change.discipline
            && discipline != self.discipline
        {
            self.discipline = discipline;
            self.published.outdated = true;
            self.request_plan(format!("the discipline became {discipline}"));
        }
        Ok(self.policy_view())
    }
}
