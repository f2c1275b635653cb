//! The adoption of new plans: checked, given identities, judged, stored, and then rolled out.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use packhorse_cluster::{
    DeviceId, Generation, ReplicaId, ReplicaPhase, ReplicaSpec, Time, VariantMix,
};

use crate::{
    controller::Controller,
    effect::Write,
    event::{Solution, SolveError},
    keys::SolveKey,
    notice::{Notice, PlanNotice},
    pending::Pending,
    plan_reason::PlanReasons,
    planning_input::{DraftPlan, PlanningInput},
    planning_trouble::PlanningTrouble,
    record::PlanRecord,
    rollout::{Observations as _, PlacedReplica, assign_ids},
    state::{CurrentPlan, by_model},
    worth::Judgement,
};

impl Controller {
    /// Takes a policy's answer, and adopts its plan if it is one, differs from the current one, and is worth its cost.
    pub(crate) fn solved(
        &mut self,
        now: Time,
        key: SolveKey,
        result: &Result<Solution, SolveError>,
    ) {
        let solve_ms = result.as_ref().map_or(0.0, |solution| solution.solve_ms);
        let took = Duration::try_from_secs_f64(solve_ms / 1e3).unwrap_or_default();
        let Some(input) = self.planning.solved(now, key, took) else {
            return;
        };
        let input = match result {
            Ok(solution) if solution.mix != VariantMix::ACCURATE => {
                Arc::new(input.at(solution.mix))
            }
            _ => input,
        };
        self.announcements.all_unserved();
        let draft = match input.draft(result.as_ref()) {
            Ok(draft) => draft,
            Err(error) => {
                let text = format!("no new plan; the current one stays: {error}");
                self.tell(Notice::Plan(None, PlanNotice::Rejected, text));
                self.planning.failed(now, input.reasons.clone(), error);
                return;
            }
        };
        let trouble = draft.fallback.clone().map(PlanningTrouble::Fallback);
        self.planning.succeeded(trouble);
        let newest = self.state.plan.record.as_ref().map(|plan| plan.generation);
        let generation = Generation(newest.map_or(1, |newest| newest.0 + 1));
        let replicas = self.with_ids(generation, &draft);
        let first = newest.is_none() && self.state.models.len() > 0;
        if !first && self.is_unchanged(&replicas) {
            self.state.plan.forecasts = by_model(&draft.forecasts);
            self.state.rollout.set_memory(&replicas);
            self.touch_traffic();
            self.announcements
                .all_models(self.state.models.iter().map(|(id, _)| id));
            return;
        }
        let text = input.reasons.to_string();
        if let Some(judgement) = self.judge(&input, result, &replicas, first)
            && !judgement.is_worth_it
        {
            let text = format!("the current plan stays: {judgement} ({text})");
            self.tell(Notice::Plan(None, PlanNotice::Rejected, text));
            return;
        }
        self.tell(Notice::Plan(Some(generation), PlanNotice::Proposed, text));
        let record = Arc::new(self.record(now, generation, draft, &replicas, &input));
        self.planning.storing();
        self.state.rollout.keep(&replicas);
        let reasons = input.reasons.clone();
        let pending = Pending::Plan {
            record: Arc::clone(&record),
            replicas,
            reasons,
        };
        let outcome = self.predictions.outcome();
        let outcome = (newest.is_some() && outcome.seconds > 0.0).then_some(outcome);
        self.store(Write::InsertPlan(record, outcome), pending);
    }

    /// Gives the replicas of a draft identities. Replicas of models that were removed or have failed meanwhile are left out.
    fn with_ids(&self, generation: Generation, draft: &DraftPlan) -> Vec<PlacedReplica> {
        let specs: Vec<ReplicaSpec<_>> = draft
            .replicas
            .iter()
            .filter_map(|spec| {
                let model = self.state.models.get(&spec.model)?;
                let program = Arc::clone(&model.program);
                model.failure.is_none().then(|| spec.with_model(program))
            })
            .collect();
        let existing = self.state.rollout.iter();
        let existing = existing.filter(|replica| replica.phase != ReplicaPhase::Draining);
        assign_ids(generation, specs, existing)
    }

    /// Returns true if these are the replicas of the current plan, with the same duty cycles.
    fn is_unchanged(&self, replicas: &[PlacedReplica]) -> bool {
        let key = |replica: &PlacedReplica| (replica.id, replica.spec.duty_cycle);
        let planned: BTreeSet<_> = self.state.rollout.planned().map(key).collect();
        planned == replicas.iter().map(key).collect()
    }

    /// Judges whether a plan is worth its cost. `None` if it need not be: something other than an observation asked for it, or there
    /// is nothing to compare it with.
    fn judge(
        &self,
        input: &PlanningInput,
        result: &Result<Solution, SolveError>,
        replicas: &[PlacedReplica],
        first: bool,
    ) -> Option<Judgement> {
        if first || !input.reasons.all_observations() {
            return None;
        }
        let comparison = result.as_ref().ok()?.comparison.as_ref()?;
        let observed = self.state.observed();
        Some(Judgement::new(
            &input.problem,
            comparison,
            input.options.objective,
            replicas,
            &self.state.rollout,
            |device: &DeviceId| observed.memory(device),
        ))
    }

    fn record(
        &self,
        now: Time,
        generation: Generation,
        draft: DraftPlan,
        replicas: &[PlacedReplica],
        input: &PlanningInput,
    ) -> PlanRecord {
        let since_start = now.saturating_since(Time::ZERO).as_millis();
        let since_start = i64::try_from(since_start).unwrap_or(i64::MAX);
        PlanRecord {
            generation,
            policy: draft.policy.to_owned(),
            reason: input.reasons.to_string(),
            solve_ms: draft.solve_ms,
            created_ms: self.config.unix_start_ms.saturating_add(since_start),
            replicas: replicas
                .iter()
                .map(|replica| packhorse_cluster::Replica {
                    id: replica.id,
                    spec: replica.spec.with_model(replica.spec.model.model.clone()),
                    phase: replica.phase,
                    worker: replica.worker,
                })
                .collect(),
            device_kinds: draft.device_kinds,
            forecasts: draft.forecasts,
        }
    }

    /// Rolls out a plan that is stored.
    pub(crate) fn adopt(&mut self, record: Arc<PlanRecord>, mut replicas: Vec<PlacedReplica>) {
        self.planning.stored();
        // Models may have been removed or have failed while the plan was stored.
        replicas.retain(|replica| self.state.models.serves(&replica.spec.model));
        let plural = if replicas.len() == 1 { "" } else { "s" };
        let text = format!("{} replica{plural}: {}", replicas.len(), record.reason);
        let notice = Notice::Plan(Some(record.generation), PlanNotice::Adopted, text);
        self.tell(notice);
        self.predictions.replace_plan();
        self.state.plan = CurrentPlan::new(record);
        self.state.rollout.adopt(replicas);
        self.touch_traffic();
        let known: BTreeSet<ReplicaId> = self
            .state
            .rollout
            .iter()
            .map(|replica| replica.id)
            .collect();
        self.state.start_failures.retain(|id| known.contains(&id));
        self.announcements.plan_adopted();
        self.announcements
            .all_models(self.state.models.iter().map(|(id, _)| id));
    }

    /// Keeps the current plan, because the new one could not be stored.
    pub(crate) fn plan_not_stored(&mut self, now: Time, reasons: PlanReasons) {
        self.state.rollout.release();
        self.planning.not_stored(now, reasons);
    }

    /// Notes that the planned rates of all models may have changed.
    fn touch_traffic(&mut self) {
        for (id, _) in self.state.models.iter() {
            self.state.traffic.touch(&id.name);
        }
    }

    /// Tells that the current plan is degraded.
    pub(crate) fn plan_degraded(&mut self, text: String) {
        let generation = self.state.plan.record.as_ref().map(|plan| plan.generation);
        self.tell(Notice::Plan(generation, PlanNotice::Degraded, text));
    }
}
