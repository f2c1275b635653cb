//! The reports of a plan and of a run, which `packhorse plan --json` and `packhorse-lab simulate --json` print.

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceIndex, DeviceKind, Discipline, Explanation, ModelId, ModelIndex,
    ModelVersion, Plan, PlannedReplica, Program, ReplicaSpec, Residency, Time, UnitError,
};
use serde::{Deserialize, Serialize};

use crate::{
    Curves, Scenario,
    counters::{ModelCounters, RunCounters},
};

/// The report of a plan for a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanReport {
    /// The scenario's name.
    pub scenario: String,
    /// The policy that made the plan; `file` if it was read from a file.
    pub policy: String,
    /// The sum of the models' predicted goodput, in requests/s.
    pub predicted_goodput_rps: f64,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The replicas in the plan's order.
    pub replicas: Vec<ReplicaReport>,
    /// The models in the scenario's order.
    pub models: Vec<PlannedModelReport>,
    /// The names of the models without a replica.
    pub unserved: Vec<String>,
    /// The number of devices with at least one replica.
    pub devices_used: usize,
    /// The names of all devices in the order that numbers them, if the scenario names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_names: Vec<DeviceId>,
    /// The replicas of the scenario's current plan that stay beside those of this plan, on devices that take no others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptReplicaReport>,
}

/// A replica that stays on a device which takes no others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptReplicaReport {
    /// The model's name in the scenario.
    pub model: String,
    /// The device, as NODE/NAME.
    pub device: DeviceId,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors in percent; null sets no limit.
    pub compute_share_pct: Option<f64>,
}

impl From<&ReplicaSpec> for KeptReplicaReport {
    fn from(spec: &ReplicaSpec) -> Self {
        Self {
            model: model_name(&spec.model),
            device: spec.device.clone(),
            batch_size: spec.batch_size,
            compute_share_pct: spec.compute_share.map(f64::from),
        }
    }
}

/// A replica of a plan. Only this is read of a plan in a file. It does not contain the duty cycle, so that replicas read from a file
/// always compute at the same time; only the replicas of a policy's own plan are time-shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// The model's name in the scenario.
    pub model: String,
    /// The device, counted from 0 over all devices of the scenario.
    pub device: usize,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors in percent; null sets no limit.
    pub compute_share_pct: Option<f64>,
    /// Its worker process, if that is its device's pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<ReportedWorker>,
    /// The place of its weights at the start, if it is a member of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
}

/// The worker process of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportedWorker {
    /// It has one of its own.
    Own,
    /// It shares that of its device's pool.
    Pool,
}

/// The report of a model in a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedModelReport {
    /// The model's name in the scenario.
    pub name: String,
    /// The rate of the model's requests, in requests/s.
    pub rate_rps: f64,
    /// The rate of requests answered within the SLO, by the policy's own estimate, in requests/s.
    pub predicted_goodput_rps: f64,
    /// The number of replicas.
    pub replicas: usize,
    /// The bottleneck of the model and what would serve it, if an explanation was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

/// The report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The dispatch discipline.
    pub discipline: Discipline,
    /// The seed of all randomness.
    pub seed: u64,
    /// The plan at the start of the run.
    pub plan: PlanReport,
    /// The models in the scenario's order.
    pub models: Vec<ModelReport>,
    /// The sums over the models.
    pub totals: Totals,
    /// The families of the scenario.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<FamilyReport>,
    /// The changes of the plan, in a run that replans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replanning: Option<ReplanningReport>,
    /// The devices over time, in a run whose scenario has an autoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<AutoscaleReport>,
}

/// The report of the devices that an autoscaler added and removed during a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoscaleReport {
    /// The kind of the devices.
    pub kind: DeviceKind,
    /// The sum of the devices' time in hours: of each from when it was asked for until it was removed, or until the end of arrivals.
    pub device_hours: f64,
    /// The numbers of devices from each moment on at which one of them changed, ascending.
    pub over_time: Vec<DeviceCounts>,
}

/// The numbers of devices of the autoscaled kind from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceCounts {
    /// The second since the start of the run.
    pub t_s: f64,
    /// The devices that are needed by the autoscaler's rule; null before it is known.
    pub needed: Option<usize>,
    /// The devices that take replicas.
    pub have: usize,
    /// The devices that were asked for and have not joined.
    pub starting: usize,
    /// The devices that are being drained.
    pub draining: usize,
}

/// The report of the changes of the plan during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReplanningReport {
    /// The seconds between two calls of the policy.
    pub every_s: f64,
    /// The number of calls of the policy.
    pub asked: u64,
    /// The number of calls that returned no plan or one with violations.
    pub unanswered: u64,
    /// The number of plans that differed from the plan before and were adopted.
    pub changed: u64,
    /// The number of plans that were not worth the cost of moving to them.
    pub rejected: u64,
    /// The number of workers that were started after the first plan's, again after they died among them.
    pub started: u64,
    /// The number of workers that have ended.
    pub stopped: u64,
}

/// The report of the requests of a model. A field without a value is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// The model's name in the scenario.
    pub name: String,
    /// The arrivals in the window over the window's length, in requests/s.
    pub offered_rps: f64,
    /// The answered arrivals of the window over the time from the window's start to the last of these answers, or to the window's end
    /// if that is later, in requests/s.
    pub throughput_rps: f64,
    /// The arrivals of the window that were answered within the SLO over the window's length, in requests/s.
    pub goodput_rps: f64,
    /// The number of requests that were refused or expired, over the whole run.
    pub dropped: u64,
    /// The number of requests that were accepted and then lost with a worker, with no time to retry, over the whole run. Not in the
    /// JSON.
    #[serde(skip)]
    pub lost: u64,
    /// The latencies of the answered arrivals of the window, in milliseconds.
    pub latency_ms: Quantiles,
    /// The 95th percentile of each stage of these requests, in milliseconds.
    pub stages_ms_p95: StagesReport,
    /// The mean number of requests per batch over the whole run.
    pub mean_batch: Option<f64>,
    /// The data of figures. Not in the JSON.
    #[serde(skip)]
    pub curves: Curves,
}

/// The report of a family. In the reports of its models, what was offered is what was asked of each, and what was answered is what each answered,
/// whichever model was asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FamilyReport {
    /// The name.
    pub name: String,
    /// The sum of its models' offered rates, in requests/s.
    pub offered_rps: f64,
    /// The sum of its models' goodput, in requests/s.
    pub goodput_rps: f64,
    /// The sum of its models' goodput, each times its accuracy: the requests that were answered within the SLO and, expectedly, right, in
    /// requests/s.
    pub accurate_goodput_rps: f64,
    /// The mean accuracy of the answers within the SLO, in percent; null without any.
    pub accuracy_pct: Option<f64>,
}

/// Quantiles. The p-quantile is element floor(p·n) of the sorted list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// The time of a request in each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StagesReport {
    /// The wait from arrival until the replica that took the request had a free credit.
    pub queue: Option<f64>,
    /// The wait from then until dispatch, for other requests to fill the batch.
    pub batch: Option<f64>,
    /// Hand-over, transmission, and the return.
    pub network: Option<f64>,
    /// The wait at the worker for other batches.
    pub worker_queue: Option<f64>,
    /// The computation on the device.
    pub compute: Option<f64>,
}

/// The sums over the models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// The sum of the models' offered rates, in requests/s.
    pub offered_rps: f64,
    /// The sum of the models' throughput, in requests/s.
    pub throughput_rps: f64,
    /// The sum of the models' goodput, in requests/s.
    pub goodput_rps: f64,
    /// The number of requests that were refused or expired, over the whole run.
    pub dropped: u64,
    /// The number of requests that were accepted and then lost with a worker, over the whole run. Not in the JSON.
    #[serde(skip)]
    pub lost: u64,
    /// The moves of weights; `None` if no device has a pool.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub pools: Option<PoolTotals>,
}

/// The moves of weights of a run whose devices have pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolTotals {
    /// The number of weights that were copied to a device.
    pub loads: u64,
    /// The number of weights that made room for others.
    pub evictions: u64,
    /// The number of requests that came when no device had the weights of their model.
    pub cold_requests: u64,
}

/// A replica of a plan file that does not fit the scenario.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("replicas[{replica}].{problem}")]
pub struct PlanFileError {
    /// The index of the replica in the file.
    pub replica: usize,
    /// The field that does not fit, and why.
    pub problem: PlanFileProblem,
}

/// The reason why a replica of a plan file does not fit the scenario.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanFileProblem {
    /// The scenario has no such device.
    #[error("device: the scenario has no device {device}, but {devices} devices, counted from 0")]
    UnknownDevice {
        /// The device in the file.
        device: usize,
        /// The number of devices of the scenario.
        devices: usize,
    },
    /// The scenario has no such model.
    #[error("model: the scenario has no model {0:?}")]
    UnknownModel(String),
    /// The model has no profile for the device.
    #[error("device: {model:?} has no profile on {kind}")]
    MissingProfile {
        /// The model's name in the scenario.
        model: String,
        /// The kind of the device.
        kind: DeviceKind,
    },
    /// The batch size is out of range.
    #[error(
        "batch_size: expected between 1 and {max}, not {0}",
        max = Program::MAX_BATCH_SIZE
    )]
    BatchSize(u32),
    /// The replica is a member of a pool, whose plan is not only its replicas.
    #[error(
        "worker: a plan with pools is made where it is simulated (pool = \"auto\"), and not read from a file"
    )]
    Pool,
    /// The compute share is out of range.
    #[error("compute_share_pct: {0}")]
    ComputeShare(UnitError),
}

impl Scenario {
    /// Reads the replicas of a plan report.
    ///
    /// # Errors
    /// Returns the first replica whose model or device the scenario does not have, whose model has no profile there, or whose batch
    /// size or share is out of range.
    pub fn replicas(
        &self,
        replicas: &[ReplicaReport],
    ) -> Result<Vec<PlannedReplica>, PlanFileError> {
        let planned = |(i, report): (usize, &ReplicaReport)| {
            self.planned_replica(report)
                .map_err(|problem| PlanFileError {
                    replica: i,
                    problem,
                })
        };
        replicas.iter().enumerate().map(planned).collect()
    }

    fn planned_replica(&self, report: &ReplicaReport) -> Result<PlannedReplica, PlanFileProblem> {
        let devices = self.problem.devices.len();
        if report.device >= devices {
            return Err(PlanFileProblem::UnknownDevice {
                device: report.device,
                devices,
            });
        }
        let models = &self.problem.models;
        let model = models
            .iter()
            .position(|model| model_name(&model.id) == report.model)
            .ok_or_else(|| PlanFileProblem::UnknownModel(report.model.clone()))?;
        let (model, device) = (ModelIndex(model), DeviceIndex(report.device));
        if self.problem.profile(model, device).is_none() {
            return Err(PlanFileProblem::MissingProfile {
                model: report.model.clone(),
                kind: self.problem.devices[report.device].kind.clone(),
            });
        }
        if !(1..=Program::MAX_BATCH_SIZE).contains(&report.batch_size) {
            return Err(PlanFileProblem::BatchSize(report.batch_size));
        }
        if report.worker == Some(ReportedWorker::Pool) {
            return Err(PlanFileProblem::Pool);
        }
        let compute_share = report
            .compute_share_pct
            .map(ComputeShare::new)
            .transpose()
            .map_err(PlanFileProblem::ComputeShare)?;
        Ok(PlannedReplica {
            model,
            device,
            batch_size: report.batch_size,
            compute_share,
            duty_cycle: None,
            memory: None,
            backbone: None,
            pool: None,
        })
    }

    /// Returns the report of a replica of a plan for this scenario.
    pub fn replica_report(&self, replica: &PlannedReplica) -> ReplicaReport {
        ReplicaReport {
            model: model_name(&self.problem.models[replica.model.0].id),
            device: replica.device.0,
            batch_size: replica.batch_size,
            compute_share_pct: replica.compute_share.map(f64::from),
            worker: replica.pool.map(|_| ReportedWorker::Pool),
            residency: replica.pool.map(|place| place.residency),
        }
    }
}

/// The name of a model in a scenario: without its version if that is the first.
pub(crate) fn model_name(id: &ModelId) -> String {
    if id.version == ModelVersion::FIRST {
        id.name.to_string()
    } else {
        id.to_string()
    }
}

impl PlanReport {
    /// Returns the report of a policy's plan.
    pub fn new(scenario: &Scenario, plan: &Plan, solve_ms: f64) -> Self {
        let goodput = plan
            .models
            .iter()
            .map(|forecast| forecast.goodput.get())
            .collect();
        Self::from_parts(scenario, plan.policy, &plan.replicas, goodput, solve_ms)
    }

    /// Returns the report of replicas that were read from a file. The predicted goodput is that of the thesis' policies: the rate, or the
    /// throughput of full batches if that is less.
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
        Self::from_parts(scenario, "file", replicas, goodput.collect(), 0.0)
    }

    fn from_parts(
        scenario: &Scenario,
        policy: &str,
        replicas: &[PlannedReplica],
        goodput: Vec<f64>,
        solve_ms: f64,
    ) -> Self {
        let models = &scenario.problem.models;
        let planned = |(i, goodput): (usize, f64)| PlannedModelReport {
            name: model_name(&models[i].id),
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
            device_names: scenario.context.given_names().to_vec(),
            kept: Vec::new(),
        }
    }
}

impl Report {
    pub(crate) fn new(
        scenario: &Scenario,
        plan: PlanReport,
        discipline: Discipline,
        seed: u64,
        counters: RunCounters,
    ) -> Self {
        let (window, start, end) = (
            counters.window().as_secs_f64(),
            counters.window_start(),
            counters.window_end(),
        );
        let pools = counters.pools.map(|pools| PoolTotals {
            loads: pools.loads,
            evictions: pools.evictions,
            cold_requests: pools.cold_requests,
        });
        let counters = scenario.problem.models.iter().zip(counters.models);
        let models: Vec<ModelReport> = counters
            .map(|(model, counters)| {
                model_report(model_name(&model.id), counters, window, start, end)
            })
            .collect();
        let totals = Totals {
            pools,
            ..Totals::from_models(&models)
        };
        Self {
            scenario: scenario.name.clone(),
            discipline,
            seed,
            plan,
            families: family_reports(scenario, &models),
            models,
            totals,
            replanning: None,
            autoscale: None,
        }
    }
}

fn family_reports(scenario: &Scenario, models: &[ModelReport]) -> Vec<FamilyReport> {
    let families = scenario.families.iter();
    families
        .map(|family| {
            let variants = || {
                let variants = family.variants.iter();
                variants.map(|variant| (&models[variant.model.0], variant.accuracy.get()))
            };
            let goodput_rps = sum(variants().map(|(model, _)| model.goodput_rps));
            let accurate_goodput_rps =
                sum(variants().map(|(model, accuracy)| model.goodput_rps * accuracy / 100.0));
            FamilyReport {
                name: family.name.clone(),
                offered_rps: sum(variants().map(|(model, _)| model.offered_rps)),
                goodput_rps,
                accurate_goodput_rps,
                accuracy_pct: (goodput_rps > 0.0)
                    .then(|| 100.0 * accurate_goodput_rps / goodput_rps),
            }
        })
        .collect()
}

/// Returns the sum of some values. Without any value it is 0, where `Iterator::sum` returns -0.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    0.0 + values.sum::<f64>()
}

impl Totals {
    pub(crate) fn from_models(models: &[ModelReport]) -> Self {
        let sum = |field: fn(&ModelReport) -> f64| sum(models.iter().map(field));
        Self {
            offered_rps: sum(|model| model.offered_rps),
            throughput_rps: sum(|model| model.throughput_rps),
            goodput_rps: sum(|model| model.goodput_rps),
            dropped: models.iter().map(|model| model.dropped).sum(),
            lost: models.iter().map(|model| model.lost).sum(),
            pools: None,
        }
    }
}

/// Returns the report of a model's requests. The window has `window` seconds, from `start` to `end`.
pub(crate) fn model_report(
    name: String,
    mut counters: ModelCounters,
    window: f64,
    start: Time,
    end: Time,
) -> ModelReport {
    let seconds = counters
        .last_answer
        .max(end)
        .saturating_since(start)
        .as_secs_f64();
    counters.latency.sort_unstable_by(f64::total_cmp);
    let quantile = |p: f64| quantile_index(counters.latency.len(), p).map(|i| counters.latency[i]);
    let curves = Curves::new(counters.offered, &counters.latency, &counters.batch_sizes);
    ModelReport {
        name,
        offered_rps: counters.offered as f64 / window,
        throughput_rps: counters.latency.len() as f64 / seconds,
        goodput_rps: counters.in_slo as f64 / window,
        dropped: counters.dropped,
        lost: counters.lost,
        latency_ms: Quantiles {
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
        },
        stages_ms_p95: StagesReport {
            queue: p95(counters.queue),
            batch: p95(counters.batch),
            network: weighted_p95(counters.network),
            worker_queue: weighted_p95(counters.worker_queue),
            compute: weighted_p95(counters.compute),
        },
        mean_batch: (counters.batches > 0)
            .then(|| counters.batched_requests as f64 / counters.batches as f64),
        curves,
    }
}

/// The index of the p-quantile in a sorted list of length `len`.
fn quantile_index(len: usize, p: f64) -> Option<usize> {
    let last = len.checked_sub(1)?;
    Some(((p * len as f64).floor() as usize).min(last))
}

fn p95(mut values: Vec<f32>) -> Option<f64> {
    let index = quantile_index(values.len(), 0.95)?;
    let (_, value, _) = values.select_nth_unstable_by(index, f32::total_cmp);
    Some(f64::from(*value))
}

fn weighted_p95(mut values: Vec<(f32, u32)>) -> Option<f64> {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: usize = values.iter().map(|value| value.1 as usize).sum();
    let index = quantile_index(total, 0.95)?;
    let mut cumulative = 0;
    let found = values.iter().find(|value| {
        cumulative += value.1 as usize;
        cumulative > index
    });
    found.map(|value| f64::from(value.0))
}
