//! The surroundings of a simulated cluster: the policy of the run, and the counters, timeline and trace of its requests.

use packhorse_cluster::{ModelIndex, ReplicaId, Time};
use packhorse_control::{
    Config, Event, Notice, PlanNotice, PlanningInput, Solution, SolveError, Write,
    record::StoredCluster,
};
use packhorse_serving::RequestOutcome;
use packhorse_trace::Batch;
use packhorse_virtual::{
    AnsweredBatch, AnsweredRequest, EndedRequest, Environment, LostBatch, SentBatch,
};

use super::control::Planner;
use crate::{
    Scenario,
    counters::{RunCounters, Stages},
    options::Recorded,
    report::ReplanningReport,
    run_trace::{self, RunTrace, index},
    timeline::{RequestEnd, Timeline},
};

/// The surroundings of the cluster of a run.
pub(crate) struct Surroundings<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) counters: RunCounters,
    /// Makes new plans; `None` if the plan stays as it is.
    pub(super) planner: Option<Planner<'a>>,
    pub(super) report: ReplanningReport,
    /// The requests and batches over time, if somebody wants them.
    pub(super) trace: Option<&'a mut RunTrace>,
    /// The numbers of requests over time, if somebody wants them.
    pub(super) timeline: Option<&'a mut Timeline>,
}

impl Surroundings<'_> {
    fn count(&mut self, model: usize, arrived: Time, end: RequestEnd) {
        if let Some(timeline) = &mut self.timeline {
            timeline.count(ModelIndex(model), arrived, end);
        }
    }

    fn record(&mut self, recorded: Recorded<'_>) {
        if let Some(planner) = &mut self.planner
            && let Some(record) = &mut planner.replanning.recorder
        {
            record(recorded);
        }
    }
}

impl Environment for Surroundings<'_> {
    fn plan(&mut self, now: Time, input: &PlanningInput) -> Result<Solution, SolveError> {
        let planner = self.planner.as_mut();
        let planner = planner.expect("only a run with new plans has a control plane");
        planner.plan(now, self.scenario, input, &mut self.report)
    }

    fn control_plane_starts(&mut self, config: &Config, stored: &StoredCluster) {
        self.record(Recorded::Started(config, stored));
    }

    fn request_arrived(&mut self, now: Time, model: usize) {
        self.counters.request_arrived(model, now);
    }

    fn request_ended(&mut self, now: Time, request: &EndedRequest) {
        let (model, arrived, outcome) = (request.model, request.arrived, request.outcome);
        self.counters.request_ended(model, outcome);
        let end = match outcome {
            RequestOutcome::Refused(_) | RequestOutcome::Expired => RequestEnd::Dropped,
            _ => RequestEnd::Lost,
        };
        self.count(model, arrived, end);
        if let Some(trace) = &mut self.trace {
            let times = (arrived, now);
            trace.request_ended(request.number, model, times, outcome, None, self.scenario);
        }
    }

    fn batch_sent(&mut self, now: Time, batch: &SentBatch) {
        self.counters.batch_sent(batch.model, now, batch.requests);
    }

    fn batch_answered(&mut self, now: Time, batch: &AnsweredBatch, requests: &[AnsweredRequest]) {
        let slo = self.scenario.problem.models[batch.model].slo;
        let stages = Stages {
            network: batch.network(now),
            worker_queue: batch.worker_queue(),
            compute: batch.compute(),
        };
        let times = requests.iter();
        let times = times.map(|request| (request.arrived, request.queue, request.batch));
        self.counters
            .batch_answered(batch.model, now, slo, stages, times);
        if self.timeline.is_some() {
            for request in requests {
                let is_within_slo = now.saturating_since(request.arrived) <= slo;
                let end = if is_within_slo {
                    RequestEnd::WithinSlo
                } else {
                    RequestEnd::Late
                };
                self.count(batch.model, request.arrived, end);
            }
        }
        if let Some(trace) = &mut self.trace {
            let requests = requests.iter();
            let answered = run_trace::AnsweredBatch {
                key: batch.number,
                model: batch.model,
                replica: batch.replica,
                device: batch.device,
                dispatched: batch.dispatched,
                answered: now,
                stages,
                requests: requests.map(|r| (r.number, r.arrived)).collect(),
            };
            trace.batch_answered(&answered, self.scenario);
        }
    }

    fn batch_lost(&mut self, now: Time, batch: &LostBatch) {
        if let Some(trace) = &mut self.trace {
            let rows = index(batch.requests);
            let lost = Batch {
                key: batch.number,
                model: index(batch.model),
                replica: index(batch.replica),
                dispatched: batch.dispatched,
                round_trip: now.saturating_since(batch.dispatched),
                requests: rows,
                rows,
                stages: None,
            };
            trace.batch_ended(lost, batch.device);
        }
    }

    fn weights_loaded(&mut self, _now: Time, _model: usize) {
        self.counters.pools.get_or_insert_default().loads += 1;
    }

    fn weights_evicted(&mut self, _now: Time, _model: usize) {
        self.counters.pools.get_or_insert_default().evictions += 1;
    }

    fn controller_handles(&mut self, now: Time, event: &Event) {
        self.record(Recorded::Handled(now, event));
    }

    fn stores(&mut self, write: &Write) {
        if let Write::InsertPlan(plan, _) = write {
            self.record(Recorded::Adopted(plan));
        }
    }

    fn told(&mut self, _now: Time, notice: &Notice) {
        if let Notice::Plan(_, notice, _) = notice {
            self.report.changed += u64::from(*notice == PlanNotice::Adopted);
            self.report.rejected += u64::from(*notice == PlanNotice::Rejected);
        }
    }

    fn worker_started(&mut self, now: Time, _replica: ReplicaId) {
        // Those of the first plan run from the beginning.
        self.report.started += u64::from(now > Time::ZERO);
    }

    fn worker_ended(&mut self, _now: Time, _replica: ReplicaId) {
        self.report.stopped += 1;
    }
}
