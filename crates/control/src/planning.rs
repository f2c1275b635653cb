//! The schedule of planning: when the next plan is due, and which one is being made.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::Time;

use crate::{
    keys::SolveKey,
    plan_reason::{PlanReason, PlanReasons},
    planning_input::PlanningInput,
    planning_trouble::{PlanningError, PlanningTrouble},
};

/// The time for which changes are collected before they are planned for together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The time after which a plan that could not be stored is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The time after which a policy that made no plan is asked again. It doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time after which a policy that made no plan is asked again.
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// The rest after a plan, in multiples of the time that it took, so that planning takes a fifth of a core at most.
const REST: u32 = 4;
/// The longest rest after a plan.
const MAX_REST: Duration = Duration::from_secs(30);

/// The schedule of planning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planning {
    /// The reasons for the next plan.
    reasons: PlanReasons,
    /// The time of the next plan; none if no plan is requested.
    due: Option<Time>,
    /// The end of the rest after the last plan.
    rested: Time,
    stage: Stage,
    /// The number of the next call of a policy.
    next_key: u64,
    /// The trouble of the last attempt.
    trouble: Option<PlanningTrouble>,
    /// The number of successive calls of policies that gave no plan.
    failures: u32,
    /// The time at which the policy is asked again, because it gave no plan, even if nothing changes.
    retry: Option<Time>,
}

/// The stage of the plan that is being made.
#[derive(Clone, Debug, Default)]
enum Stage {
    /// No plan is being made.
    #[default]
    Idle,
    /// A policy makes a plan.
    Solving(SolveKey, Arc<PlanningInput>),
    /// The plan is being stored.
    Storing,
}

impl Planning {
    /// Requests a plan, because something has changed that plans depend on.
    pub(crate) fn request(&mut self, now: Time, reason: PlanReason) {
        self.reasons.insert(reason);
        self.due.get_or_insert(now + DEBOUNCE);
    }

    /// Returns true if a plan is being made or will be, unless it is only tried again.
    pub(crate) fn is_pending(&self) -> bool {
        self.due.is_some() || !matches!(self.stage, Stage::Idle)
    }

    /// Returns the time of the next plan; `None` if no plan is requested, or if another one must end first.
    pub(crate) fn due(&self) -> Option<Time> {
        if !matches!(self.stage, Stage::Idle) {
            return None;
        }
        let due = self.due.map(|due| due.max(self.rested));
        due.into_iter().chain(self.retry).min()
    }

    /// Takes the reasons for the plan that is due.
    pub(crate) fn take_reasons(&mut self) -> PlanReasons {
        (self.due, self.retry) = (None, None);
        std::mem::take(&mut self.reasons)
    }

    /// Notes that a policy makes a plan for this input.
    pub(crate) fn begin(&mut self, input: Arc<PlanningInput>) -> SolveKey {
        let key = SolveKey(self.next_key);
        self.next_key += 1;
        self.stage = Stage::Solving(key, input);
        key
    }

    /// Ends a call of a policy that took this time. Returns its input; `None` if it is not the present call.
    pub(crate) fn solved(
        &mut self,
        now: Time,
        key: SolveKey,
        took: Duration,
    ) -> Option<Arc<PlanningInput>> {
        match std::mem::take(&mut self.stage) {
            Stage::Solving(present, input) if present == key => {
                self.rested = now + took.saturating_mul(REST).min(MAX_REST);
                Some(input)
            }
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Notes that the policy gave no plan for these reasons. It is asked again after a while.
    pub(crate) fn failed(&mut self, now: Time, reasons: PlanReasons, error: PlanningError) {
        self.trouble = Some(PlanningTrouble::Failed(error));
        self.reasons.extend(reasons);
        let doubled = FIRST_RETRY.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.retry = Some((now + doubled.min(LONGEST_RETRY)).max(self.rested));
    }

    /// Notes that the policy gave a plan, with the trouble that it had.
    pub(crate) fn succeeded(&mut self, trouble: Option<PlanningTrouble>) {
        (self.trouble, self.failures) = (trouble, 0);
    }

    /// Notes that the plan is being stored.
    pub(crate) fn storing(&mut self) {
        self.stage = Stage::Storing;
    }

    /// Notes that the plan was stored.
    pub(crate) fn stored(&mut self) {
        self.stage = Stage::Idle;
    }

    /// Notes that the plan for these reasons could not be stored. It is made again soon.
    pub(crate) fn not_stored(&mut self, now: Time, reasons: PlanReasons) {
        self.stage = Stage::Idle;
        self.trouble = Some(PlanningTrouble::NotStored);
        self.reasons.extend(reasons);
        self.due = Some(now + RETRY);
    }

    /// Returns the trouble of the last attempt.
    pub(crate) fn trouble(&self) -> Option<&PlanningTrouble> {
        self.trouble.as_ref()
    }
}
