//! The schedule of planning, and the adoption of new plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_api::{PolicyChange, PolicyView, events::EventState};
use packhorse_cluster::Generation;
use packhorse_control::rollout::{EarlierReplica, PlacedReplica, Placement, assign_ids};
use packhorse_placement::UnknownPolicy;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    cluster::{Cluster, CurrentPlan, by_model},
    draft::DraftReplica,
    nodes::Lease,
    plan_reason::{PlanReason, PlanReasons},
    planning_input::PlanningOutcome,
    planning_trouble::{PlanningError, PlanningTrouble},
};
use crate::{
    events::NewEvent,
    store::{Settings, StoreError, StoredPlan},
};

/// The time for which changes are collected before they are planned for together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The time after which a plan that could not be stored is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The schedule of planning.
#[derive(Default)]
pub(super) struct Planning {
    /// The reasons for the next plan.
    reasons: PlanReasons,
    /// The time of the next plan; none if no plan is requested.
    due: Option<Instant>,
    /// The plan that is being made.
    solve: Option<JoinHandle<PlanningOutcome>>,
    /// The trouble of the last attempt.
    pub(super) trouble: Option<PlanningTrouble>,
}

/// The reason why the policy is not changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The policy does not exist.
    #[error("policy: {0}")]
    Unknown(#[from] UnknownPolicy),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Planning {
    /// Returns true if a plan is being made or will be.
    pub(super) fn is_pending(&self) -> bool {
        self.due.is_some() || self.solve.is_some()
    }
}

impl Cluster {
    /// Requests a plan, because something has changed that plans depend on.
    pub(super) fn request_plan(&mut self, reason: PlanReason) {
        self.planning.reasons.insert(reason);
        self.schedule_planning(DEBOUNCE);
    }

    /// Makes the next plan after this delay, unless it is due earlier.
    fn schedule_planning(&mut self, delay: Duration) {
        self.planning
            .due
            .get_or_insert_with(|| Instant::now() + delay);
        self.changed = true;
    }

    /// Returns the time of the next plan; `None` if no plan is requested, or if another one must end first.
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

    /// Returns true if the nodes of the current plan have reported since the gateway's start, or are lost. A plan made earlier
    /// would move replicas that may still run.
    fn is_settled(&self) -> bool {
        let mut used = self.plan.replicas.iter().map(|r| r.device.node());
        used.all(|node| {
            let node = self.nodes.get(node);
            node.is_none_or(|node| node.report.is_some() || node.lease == Lease::Lost)
        })
    }

    /// Starts to plan, if it is time.
    pub(super) fn plan_if_due(&mut self, now: Instant) {
        if self.planning_due().is_none_or(|due| due > now) {
            return;
        }
        self.planning.due = None;
        let reasons = std::mem::take(&mut self.planning.reasons);
        let input = self.planning_input(self.policy, reasons);
        self.observer.plan_requested();
        let budget = self.config.solve_budget;
        self.planning.solve = Some(tokio::task::spawn_blocking(move || input.solve(budget)));
    }

    /// Waits for the plan that is being made; forever, if none is.
    pub(super) async fn next_outcome(&mut self) -> PlanningOutcome {
        let Some(solve) = &mut self.planning.solve else {
            return std::future::pending().await;
        };
        let outcome = solve.await;
        self.planning.solve = None;
        outcome.unwrap_or_else(|e| PlanningOutcome {
            reasons: PlanReasons::default(),
            result: Err(PlanningError::Panicked {
                policy: self.policy.name,
                error: e.to_string(),
            }),
        })
    }

    /// Makes the outcome the current plan, if it is a plan and differs from the current one.
    pub(super) async fn adopt(&mut self, outcome: PlanningOutcome) {
        self.changed = true;
        let draft = match outcome.result {
            Ok(draft) => draft,
            Err(error) => {
                tracing::error!(error = %error, "no new plan; the current one stays");
                self.planning.trouble = Some(PlanningTrouble::Failed(error));
                return;
            }
        };
        if let Some(fallback) = &draft.fallback {
            tracing::warn!(reason = %fallback, "the fallback policy made the plan");
        }
        self.planning.trouble = draft.fallback.map(PlanningTrouble::Fallback);
        let newest = self.plan.stored.as_ref().map(|plan| plan.generation);
        let generation = Generation(newest.map_or(1, |newest| newest.0 + 1));
        let (drafts, replicas) = self.with_ids(generation, draft.replicas);
        let ids: BTreeSet<_> = replicas.iter().map(|replica| replica.id).collect();
        let unchanged = ids == self.plan.replicas.iter().map(|r| r.id).collect()
            && self.has_duty_cycles(&drafts, &replicas);
        if unchanged && (newest.is_some() || self.models.is_empty()) {
            self.plan.forecasts = by_model(&draft.models);
            return;
        }
        let stored = StoredPlan {
            generation,
            policy: draft.policy.to_owned(),
            reason: outcome.reasons.to_string(),
            solve_ms: draft.solve_ms,
            created_ms: StoredPlan::now_ms(),
            replicas: drafts
                .iter()
                .zip(&replicas)
                .map(|(draft, placed)| draft.stored(placed.id))
                .collect(),
            models: draft.models,
        };
        if let Err(e) = self.store.insert_plan(&stored).await {
            tracing::error!(error = %e, "cannot store the new plan; the current one stays");
            self.planning.trouble = Some(PlanningTrouble::NotStored);
            self.planning.reasons.extend(outcome.reasons);
            self.planning.due = None;
            self.schedule_planning(RETRY);
            return;
        }
        tracing::info!(
            plan.generation = generation.0,
            plan.replicas = replicas.len(),
            plan.policy = draft.policy,
            solve_ms = draft.solve_ms,
            reason = stored.reason,
            "adopted a new plan"
        );
        let before = std::mem::take(&mut self.plan.replicas);
        let removed = before
            .into_iter()
            .filter(|replica| !ids.contains(&replica.id));
        self.earlier.extend(removed.map(|replica| EarlierReplica {
            replica,
            draining: false,
        }));
        self.published.outdated = true;
        self.plan = CurrentPlan {
            forecasts: by_model(&stored.models),
            stored: Some(stored),
            replicas,
        };
        if let Some(view) = self.plan_view() {
            let text = format!("plan {generation} was adopted");
            self.events
                .append(NewEvent::plan(view, EventState::Adopted, text));
        }
    }

    /// Returns true if the stored plan has the same duty cycles as a draft.
    fn has_duty_cycles(&self, drafts: &[DraftReplica], replicas: &[PlacedReplica]) -> bool {
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let stored: BTreeMap<_, _> = stored.map(|r| (r.id, r.duty_cycle_ms)).collect();
        let mut drafts = drafts.iter().zip(replicas);
        drafts.all(|(draft, placed)| stored.get(&placed.id) == Some(&draft.duty_cycle_ms()))
    }

    /// Gives the replicas of a draft identities. Replicas of models that were removed or have failed meanwhile are left out.
    fn with_ids(
        &self,
        generation: Generation,
        mut drafts: Vec<DraftReplica>,
    ) -> (Vec<DraftReplica>, Vec<PlacedReplica>) {
        drafts.retain(|d| {
            self.models
                .get(&d.model)
                .is_some_and(|m| m.failure.is_none())
        });
        let placements: Vec<Placement> = drafts
            .iter()
            .map(|draft| Placement {
                program: Arc::clone(&self.models[&draft.model].program),
                device: draft.device.clone(),
                device_memory: draft.device_memory,
                batch_size: draft.batch_size,
                compute_share: draft.compute_share,
                memory: draft.memory,
            })
            .collect();
        let earlier = self.earlier.iter().filter(|earlier| !earlier.draining);
        let existing = self
            .plan
            .replicas
            .iter()
            .chain(earlier.map(|earlier| &earlier.replica));
        let replicas = assign_ids(generation, &placements, existing);
        (drafts, replicas)
    }

    /// Returns the policy, its options and the discipline.
    pub(super) fn policy_view(&self) -> PolicyView {
        super::views::policy_view(self.policy, self.options, self.discipline)
    }

    /// Changes the policy, its options or the discipline.
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
        self.store.update_settings(&settings).await?;
        if policy.name != self.policy.name {
            self.policy = policy;
            self.request_plan(PlanReason::PolicyChanged(policy.name));
        }
        if let Some(options) = change.options
            && options != self.options
        {
            self.options = options;
            self.request_plan(PlanReason::OptionsChanged);
        }
        if let Some(discipline) = change.discipline
            && discipline != self.discipline
        {
            self.discipline = discipline;
            self.published.outdated = true;
            self.request_plan(PlanReason::DisciplineChanged(discipline));
        }
        Ok(self.policy_view())
    }
}
