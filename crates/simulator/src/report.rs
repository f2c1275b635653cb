//! What is told of a plan and of a run: the shapes that `packhorse plan --json` and `packhorse simulate --json` print.

use packhorse_cluster::{
    ComputeShare, DeviceIndex, Discipline, Explanation, ModelId, ModelIndex, ModelVersion, Plan,
    PlannedReplica, Program, Time,
};
use serde::{Deserialize, Serialize};

use crate::{
    Curves, Scenario,
    tally::{ModelTally, Tally},
};

/// A plan for a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanReport {
    /// The scenario's name.
    pub scenario: String,
    /// The policy that made it; `file` if it was read.
    pub policy: String,
    /// Requests per second within the SLO, by the policy's own estimate.
    pub predicted_goodput_rps: f64,
    /// How long the policy took.
    pub solve_ms: f64,
    /// In the plan's order.
    pub replicas: Vec<ReplicaReport>,
    /// In the scenario's order.
    pub models: Vec<PlannedModelReport>,
    /// Models without a replica.
    pub unserved: Vec<String>,
    /// Devices with at least one replica.
    pub devices_used: usize,
}

/// A replica of a plan. Of a plan that is read, nothing else counts: it says nothing of duty cycles, so that replicas that are
/// read share their device as the physics has it, and only a policy's own plan takes turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// Its model, as the scenario names it.
    pub model: String,
    /// Its device, counted from 0 over all devices of the scenario.
    pub device: usize,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// Its share of the multiprocessors in percent; null sets no limit.
    pub compute_share_pct: Option<f64>,
}

/// What a plan holds for a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedModelReport {
    /// As the scenario names it.
    pub name: String,
    /// What is asked of it.
    pub rate_rps: f64,
    /// Of these within the SLO, by the policy's own estimate.
    pub predicted_goodput_rps: f64,
    /// How many replicas it has.
    pub replicas: usize,
    /// What bounds it and what would serve it, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// How requests became batches.
    pub discipline: Discipline,
    /// The seed of all randomness.
    pub seed: u64,
    /// What was tried.
    pub plan: PlanReport,
    /// In the scenario's order.
    pub models: Vec<ModelReport>,
    /// Sums over the models.
    pub totals: Totals,
    /// What became of the plan, in a run that replans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replanning: Option<ReplanningReport>,
}

/// How a plan changed during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReplanningReport {
    /// Seconds between two questions to the policy.
    pub every_s: f64,
    /// How often the policy was asked.
    pub asked: u64,
    /// How often it had no plan that could be rolled out.
    pub unanswered: u64,
    /// How often its plan was another one than the one before.
    pub changed: u64,
    /// Replicas that were started.
    pub started: u64,
    /// Replicas that were stopped.
    pub stopped: u64,
}

/// What became of the requests of a model. Rates are in requests per second; what has no value is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// As the scenario names it.
    pub name: String,
    /// Arrivals in the window, per second of it.
    pub offered_rps: f64,
    /// Those of the window that were answered, per second until the last of these answers, at least until the window's end.
    pub throughput_rps: f64,
    /// Those of the window that were answered within the SLO, per second of it.
    pub goodput_rps: f64,
    /// Refused or expired, over the whole run.
    pub dropped: u64,
    /// Accepted, and then lost with a worker and with no time to try again, over the whole run. Not in the JSON.
    #[serde(skip)]
    pub lost: u64,
    /// Of those of the window that were answered.
    pub latency_ms: Quantiles,
    /// 95th percentile of each stage, of the same.
    pub stages_ms_p95: StagesReport,
    /// Requests per batch over the whole run.
    pub mean_batch: Option<f64>,
    /// What pictures show of it. Not in the JSON.
    #[serde(skip)]
    pub curves: Curves,
}

/// Quantiles: element floor(p·n) of the sorted list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// Where the time goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StagesReport {
    /// From arrival until the replica that took the request had a free credit.
    pub queue: Option<f64>,
    /// From then until dispatch: waiting for others to fill the batch.
    pub batch: Option<f64>,
    /// Hand-over, transmission, and the way back.
    pub network: Option<f64>,
    /// At the worker, behind other batches.
    pub worker_queue: Option<f64>,
    /// On the device.
    pub compute: Option<f64>,
}

/// Sums over the models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Arrivals in the window, per second of it.
    pub offered_rps: f64,
    /// Sum of the models' throughput.
    pub throughput_rps: f64,
    /// Sum of the models' goodput.
    pub goodput_rps: f64,
    /// Refused or expired, over the whole run.
    pub dropped: u64,
    /// Accepted, and then lost with a worker and with no time to try again, over the whole run. Not in the JSON.
    #[serde(skip)]
    pub lost: u64,
}

/// A replica of a file that does not fit the scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replicas[{replica}].{problem}")]
pub struct PlanFileError {
    replica: usize,
    problem: String,
}

impl Scenario {
    /// The replicas that a plan report names.
    ///
    /// # Errors
    /// The first one whose model or device the scenario does not have, whose model has no profile there, or whose batch size or
    /// share is out of its range.
    pub fn replicas(
        &self,
        replicas: &[ReplicaReport],
    ) -> Result<Vec<PlannedReplica>, PlanFileError> {
        let planned = |(i, replica): (usize, &ReplicaReport)| {
            let error = |problem| PlanFileError {
                replica: i,
                problem,
            };
            let models = &self.problem.models;
            let model = models
                .iter()
                .position(|model| name(&model.id) == replica.model);
            let devices = self.problem.devices.len();
            if replica.device >= devices {
                let device = replica.device;
                let there = format!(
                    "device: the scenario has no device {device}, but {devices} devices, counted from 0"
                );
                return Err(error(there));
            }
            let model =
                ModelIndex(model.ok_or_else(|| {
                    error(format!("model: the scenario has no {:?}", replica.model))
                })?);
            let device = DeviceIndex(replica.device);
            if self.problem.profile(model, device).is_none() {
                let kind = &self.problem.devices[replica.device].kind;
                let there = format!("device: {:?} has no profile on {kind}", replica.model);
                return Err(error(there));
            }
            if !(1..=Program::MAX_BATCH_SIZE).contains(&replica.batch_size) {
                return Err(error(format!(
                    "batch_size: expected between 1 and {}, not {}",
                    Program::MAX_BATCH_SIZE,
                    replica.batch_size
                )));
            }
            let share = replica.compute_share_pct.map(ComputeShare::new).transpose();
            Ok(PlannedReplica {
                model,
                device,
                batch_size: replica.batch_size,
                compute_share: share.map_err(|e| error(format!("compute_share_pct: {e}")))?,
                duty_cycle: None,
            })
        };
        replicas.iter().enumerate().map(planned).collect()
    }

    /// A replica of a plan for this scenario, as reports tell of it.
    pub fn replica_report(&self, replica: &PlannedReplica) -> ReplicaReport {
        ReplicaReport {
            model: name(&self.problem.models[replica.model.0].id),
            device: replica.device.0,
            batch_size: replica.batch_size,
            compute_share_pct: replica.compute_share.map(f64::from),
        }
    }
}

/// A model as a scenario names it: without its version, where that is the first.
pub(crate) fn name(id: &ModelId) -> String {
    if id.version == ModelVersion::FIRST {
        id.name.to_string()
    } else {
        id.to_string()
    }
}

impl PlanReport {
    /// Of a plan that a policy made.
    pub fn new(scenario: &Scenario, plan: &Plan, solve_ms: f64) -> Self {
        let goodput = plan
            .models
            .iter()
            .map(|forecast| forecast.goodput.get())
            .collect();
        Self::of(scenario, plan.policy, &plan.replicas, goodput, solve_ms)
    }

    /// Of replicas that were read from a file. Predicts as the thesis' policies do: the rate, or what full batches get through.
    pub fn from_replicas(scenario: &Scenario, replicas: &[PlannedReplica]) -> Self {
        let goodput = scenario.problem.models().map(|(i, model)| {
            let of_model = replicas.iter().filter(|replica| replica.model == i);
            let throughput = of_model.filter_map(|replica| {
                let profile = scenario.problem.profile(i, replica.device)?;
                Some(
                    f64::from(replica.batch_size)
                        / profile.latency(replica.batch_size).as_secs_f64(),
                )
            });
            sum(throughput).min(model.rate.get())
        });
        Self::of(scenario, "file", replicas, goodput.collect(), 0.0)
    }

    fn of(
        scenario: &Scenario,
        policy: &str,
        replicas: &[PlannedReplica],
        goodput: Vec<f64>,
        solve_ms: f64,
    ) -> Self {
        let models = &scenario.problem.models;
        let planned = |(i, goodput): (usize, f64)| PlannedModelReport {
            name: name(&models[i].id),
            rate_rps: models[i].rate.get(),
            predicted_goodput_rps: goodput,
            replicas: replicas
                .iter()
                .filter(|replica| replica.model.0 == i)
                .count(),
            explanation: None,
        };
        let planned: Vec<PlannedModelReport> =
            goodput.into_iter().enumerate().map(planned).collect();
        let mut devices: Vec<usize> = replicas.iter().map(|replica| replica.device.0).collect();
        devices.sort_unstable();
        devices.dedup();
        Self {
            scenario: scenario.name.clone(),
            policy: policy.to_owned(),
            predicted_goodput_rps: sum(planned.iter().map(|model| model.predicted_goodput_rps)),
            solve_ms,
            replicas: replicas
                .iter()
                .map(|replica| scenario.replica_report(replica))
                .collect(),
            unserved: planned
                .iter()
                .filter(|model| model.replicas == 0)
                .map(|model| model.name.clone())
                .collect(),
            models: planned,
            devices_used: devices.len(),
        }
    }
}

impl Report {
    pub(crate) fn new(
        scenario: &Scenario,
        plan: PlanReport,
        discipline: Discipline,
        seed: u64,
        tally: Tally,
    ) -> Self {
        let (window, start, end) = (
            tally.window().as_secs_f64(),
            tally.window_start(),
            tally.window_end(),
        );
        let replanning = tally.replanning;
        let tallies = scenario.problem.models.iter().zip(tally.models);
        let models: Vec<ModelReport> = tallies
            .map(|(model, tally)| model_report(name(&model.id), tally, window, start, end))
            .collect();
        let totals = Totals::of(&models);
        Self {
            scenario: scenario.name.clone(),
            discipline,
            seed,
            plan,
            models,
            totals,
            replanning,
        }
    }
}

/// The sum; of nothing it is 0, where `Iterator::sum` has -0, which is not how people write it.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    0.0 + values.sum::<f64>()
}

impl Totals {
    pub(crate) fn of(models: &[ModelReport]) -> Self {
        let sum = |of: fn(&ModelReport) -> f64| sum(models.iter().map(of));
        Self {
            offered_rps: sum(|model| model.offered_rps),
            throughput_rps: sum(|model| model.throughput_rps),
            goodput_rps: sum(|model| model.goodput_rps),
            dropped: models.iter().map(|model| model.dropped).sum(),
            lost: models.iter().map(|model| model.lost).sum(),
        }
    }
}

/// The counts of a model's requests in a window of so many seconds, from `start` to `end`.
pub(crate) fn model_report(
    name: String,
    mut tally: ModelTally,
    window: f64,
    start: Time,
    end: Time,
) -> ModelReport {
    let seconds = tally
        .last_answer
        .max(end)
        .saturating_since(start)
        .as_secs_f64();
    tally.latency.sort_unstable_by(f64::total_cmp);
    let quantile = |p: f64| element(tally.latency.len(), p).map(|i| tally.latency[i]);
    let curves = Curves::new(tally.offered, &tally.latency, &tally.batch_sizes);
    ModelReport {
        name,
        offered_rps: tally.offered as f64 / window,
        throughput_rps: tally.latency.len() as f64 / seconds,
        goodput_rps: tally.good as f64 / window,
        dropped: tally.dropped,
        lost: tally.lost,
        latency_ms: Quantiles {
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
        },
        stages_ms_p95: StagesReport {
            queue: p95(tally.queue),
            batch: p95(tally.batch),
            network: weighted_p95(tally.network),
            worker_queue: weighted_p95(tally.worker_queue),
            compute: weighted_p95(tally.compute),
        },
        mean_batch: (tally.batches > 0).then(|| tally.batched as f64 / tally.batches as f64),
        curves,
    }
}

/// The place of the p-quantile in a sorted list of `len`.
fn element(len: usize, p: f64) -> Option<usize> {
    let last = len.checked_sub(1)?;
    Some(((p * len as f64).floor() as usize).min(last))
}

fn p95(mut values: Vec<f32>) -> Option<f64> {
    let place = element(values.len(), 0.95)?;
    let (_, value, _) = values.select_nth_unstable_by(place, f32::total_cmp);
    Some(f64::from(*value))
}

fn weighted_p95(mut values: Vec<(f32, u32)>) -> Option<f64> {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: usize = values.iter().map(|value| value.1 as usize).sum();
    let place = element(total, 0.95)?;
    let mut before = 0;
    let found = values.iter().find(|value| {
        before += value.1 as usize;
        before > place
    });
    found.map(|value| f64::from(value.0))
}
