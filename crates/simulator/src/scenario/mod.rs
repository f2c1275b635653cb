//! What there is and what is asked of it: devices, models with their load, profiles, and how the simulated world behaves.
//!
//! [`Scenario::parse`] reads the TOML; every number is checked against its range, and an error names the field and the range.
//! Files that a scenario names come through a closure, so that nothing here touches a disk.

mod file;
mod rate;

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{
    ByteCount, Conditions, DemandedModel, Device, DeviceIndex, DeviceKind, DeviceObservation,
    IdError, ModelId, NetworkModel, NodeName, Problem, ProblemError, ProfileError, ProfileTable,
    Program, RequestsPerSecond, Time, known_cost_per_hour, known_kind,
};
use packhorse_contention::{Interference, PairTable};

use crate::trace::{self, TraceError};
use file::{
    ArrivalsEntry, DeviceGroup, FaultEntry, FaultKindEntry, ModelEntry, ScenarioFile,
    SimulationEntry,
};
pub use rate::Rate;

/// A scenario: a placement problem and the world in which its plan is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// What a policy is asked; its discipline is the default one until somebody chooses.
    pub problem: Problem,
    /// What is asked of each model of the problem, in its order.
    pub workloads: Vec<Workload>,
    /// How long `fixed-wait` holds an open batch at most.
    pub max_batch_wait: Duration,
    /// The text of the file with the coefficients of `igniter`, where the scenario names one.
    pub igniter_coefficients: Option<String>,
    /// How the simulated world behaves.
    pub simulation: Simulation,
}

/// The load of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// How many requests a benchmark against a live gateway sends; a simulation counts a window instead.
    pub requests: Option<u64>,
    /// The rate over time.
    pub rate: Rate,
    /// Real inference time over the profile's.
    pub latency_scale: f64,
}

/// How the simulated world behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Arrivals before this are not counted.
    pub warmup: Duration,
    /// Arrivals in `[warmup, warmup + window)` are counted.
    pub window: Duration,
    /// A client's own work per request: it sleeps until the next one is due and then spends this.
    pub client_overhead: Duration,
    /// Hand-over of a batch, before the network.
    pub router_overhead: Duration,
    /// From the gateway to a worker.
    pub network: NetworkModel,
    /// From a worker to the client.
    pub return_time: Duration,
    /// What co-location and compute shares cost.
    pub interference: Interference,
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl Simulation {
    /// What a planner is told of this world: all but the extra slowdown and the faults.
    fn conditions(&self, max_batch_wait: Duration) -> Conditions {
        Conditions {
            router_overhead: self.router_overhead,
            return_time: self.return_time,
            client_overhead: self.client_overhead,
            burstiness: self.arrivals.variation(),
            mps_exponent: self.interference.mps_exponent(),
            max_batch_wait,
        }
    }
}

/// When requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Gaps are exponential.
    Poisson,
    /// Gaps follow a gamma distribution of this coefficient of variation, above 0: over 1 is burstier than Poisson.
    Gamma(f64),
    /// At these moments, ascending: one list per model, in the problem's order.
    Trace(Vec<Vec<Time>>),
}

impl Arrivals {
    /// Coefficient of variation of the gaps; of a trace, over all its models' gaps relative to the model's mean.
    fn variation(&self) -> f64 {
        match self {
            Self::Poisson => 1.0,
            Self::Gamma(variation) => *variation,
            Self::Trace(moments) => trace::variation(moments),
        }
    }
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// For how long.
    pub lasts: Duration,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The workers of a device die, and their connections break at once; they are back when the fault ends.
    WorkerDies(DeviceIndex),
    /// Batches on a device take so many times as long.
    SlowWorker(DeviceIndex, f64),
    /// Every message between gateway and workers takes so much longer.
    NetworkDelay(Duration),
    /// The devices of a node, counted from 0 in the scenario's order, are silent: the gateway notices when the lease ends.
    NodeLost(usize),
}

/// Why a text is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// No TOML, or not of a scenario's shape: the message names line and key.
    #[error("{0}")]
    Toml(String),
    /// A value is out of its range.
    #[error("{field}: {problem}")]
    Field {
        /// The key, as the file spells it: `models[2].slo_ms`.
        field: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A file that the scenario names cannot be read.
    #[error("{path}: {problem}")]
    Load {
        /// As the scenario names it.
        path: String,
        /// What the closure said.
        problem: String,
    },
    /// A file that the scenario names holds no profiles.
    #[error("{path}")]
    Profiles {
        /// As the scenario names it.
        path: String,
        /// What is wrong with it.
        #[source]
        source: ProfileError,
    },
    /// A file that the scenario names holds no trace.
    #[error("{path}")]
    Trace {
        /// As the scenario names it.
        path: String,
        /// What is wrong with it.
        #[source]
        source: TraceError,
    },
    /// The models contradict each other.
    #[error("the models are no placement problem")]
    Problem(#[source] ProblemError),
}

/// The most devices of a scenario.
const MAX_DEVICES: usize = 100_000;
/// The most models of a scenario.
const MAX_MODELS: usize = 10_000;
/// The latest moment that a scenario can name, in seconds.
const MAX_SECONDS: f64 = 1e7;

fn field<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, ScenarioError> {
    Err(ScenarioError::Field {
        field: field.into(),
        problem: problem.into(),
    })
}

/// A number in seconds times `unit` as a duration: finite, not negative, not absurd.
fn duration(name: impl Into<String>, value: f64, unit: f64) -> Result<Duration, ScenarioError> {
    let seconds = value * unit;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        field(
            name,
            format!("expected between 0 and {}, not {value}", MAX_SECONDS / unit),
        )
    }
}

const S: f64 = 1.0;
const MS: f64 = 1e-3;

fn positive(name: impl Into<String>, value: f64, limit: f64) -> Result<f64, ScenarioError> {
    if value > 0.0 && value <= limit {
        Ok(value)
    } else {
        field(
            name,
            format!("expected above 0 and at most {limit}, not {value}"),
        )
    }
}

/// Slower than a byte per second, a request is not there within the time that can be told.
fn bandwidth(bytes_per_second: f64) -> Result<f64, ScenarioError> {
    const LIMIT: f64 = 1e15;
    if (1.0..=LIMIT).contains(&bytes_per_second) {
        return Ok(bytes_per_second);
    }
    field(
        "simulation.network_bytes_per_s",
        format!("expected between 1 and {LIMIT}, not {bytes_per_second}"),
    )
}

fn rate(name: impl Into<String>, value: f64) -> Result<RequestsPerSecond, ScenarioError> {
    RequestsPerSecond::new(value).or_else(|e| field(name, e.to_string()))
}

impl Scenario {
    /// Reads the TOML of a scenario. `load` gives the text of a file that it names, by the path as it stands there (relative to
    /// the scenario's own file), or says why it cannot.
    ///
    /// # Errors
    /// The first thing that is wrong, with field and range.
    pub fn parse(
        text: &str,
        load: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, ScenarioError> {
        let file: ScenarioFile =
            toml::from_str(text).map_err(|e| ScenarioError::Toml(e.to_string()))?;
        let mut load = |path: &str| {
            load(path).map_err(|problem| ScenarioError::Load {
                path: path.to_owned(),
                problem,
            })
        };
        let devices = devices(&file.devices)?;
        let profiles = profiles(&file.profiles, &mut load)?;
        if file.models.is_empty() || file.models.len() > MAX_MODELS {
            return field(
                "models",
                format!(
                    "expected 1 to {MAX_MODELS} models, not {}",
                    file.models.len()
                ),
            );
        }
        let mut models = Vec::new();
        let mut workloads = Vec::new();
        for (i, entry) in file.models.iter().enumerate() {
            let workload = workload(i, entry, file.simulation.latency_scale)?;
            models.push(model(
                i,
                entry,
                &devices,
                &profiles,
                workload.latency_scale,
            )?);
            workloads.push(workload);
        }
        let ids: Vec<&ModelId> = models.iter().map(|model| &model.id).collect();
        let arrivals = arrivals(&file.simulation.arrivals, &ids, &mut workloads, &mut load)?;
        let simulation = simulation(&file.simulation, arrivals, &devices)?;
        for (i, model) in models.iter().enumerate() {
            if simulation.window < model.slo {
                let problem = format!(
                    "a window of {:?} is shorter than the SLO of models[{i}]",
                    simulation.window
                );
                return field("simulation.window_s", problem);
            }
        }
        let max_batch_wait = duration("max_batch_wait_ms", file.max_batch_wait_ms, MS)?;
        let observations = measured_pairs(&file, &devices, &profiles, &mut load)?;
        let problem = Problem {
            devices,
            models,
            profiles,
            observations,
            network: simulation.network,
            conditions: simulation.conditions(max_batch_wait),
            ..Problem::default()
        };
        problem.validate().map_err(ScenarioError::Problem)?;
        let igniter_coefficients = file
            .igniter_coefficients
            .as_deref()
            .map(&mut load)
            .transpose()?;
        Ok(Self {
            name: file.name,
            problem,
            workloads,
            max_batch_wait,
            igniter_coefficients,
            simulation,
        })
    }
}

/// What pairs teach that were measured on the first device's kind.
fn measured_pairs(
    file: &ScenarioFile,
    devices: &[Device],
    profiles: &ProfileTable,
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<Vec<DeviceObservation>, ScenarioError> {
    let mut observations = Vec::new();
    for (i, name) in file.measured_pairs.iter().enumerate() {
        let pairs = PairTable::from_csv(&load(name)?)
            .or_else(|e| field(format!("measured_pairs[{i}]"), format!("{name}: {e}")))?;
        observations.extend(pairs.observations(&devices[0].kind, profiles));
    }
    Ok(observations)
}

fn devices(groups: &[DeviceGroup]) -> Result<Vec<Device>, ScenarioError> {
    let mut devices = Vec::new();
    let mut nodes = 0;
    for (i, group) in groups.iter().enumerate() {
        let at = |key: &str| format!("devices[{i}].{key}");
        let kind: DeviceKind = group
            .kind
            .parse()
            .or_else(|e: IdError| field(at("kind"), e.to_string()))?;
        let known = known_kind(&kind);
        let memory = match (group.memory_mib, known) {
            (Some(mib), _) => ByteCount::try_from_mib_f64(mib)
                .or_else(|e| field(at("memory_mib"), e.to_string()))?,
            (None, Some((memory, _))) => memory,
            (None, None) => {
                return field(
                    at("memory_mib"),
                    format!("missing, and {kind} is no known kind"),
                );
            }
        };
        let per_node = group.gpus_per_node.unwrap_or(group.count.max(1));
        if per_node == 0 {
            return field(at("gpus_per_node"), "expected at least 1");
        }
        if group.count > MAX_DEVICES - devices.len() {
            return field(
                at("count"),
                format!("expected at most {MAX_DEVICES} devices in all"),
            );
        }
        if let Some(cost) = group
            .cost_per_hour
            .filter(|cost| !(0.0..=1e9).contains(cost))
        {
            return field(
                at("cost_per_hour"),
                format!("expected between 0 and 1e9, not {cost}"),
            );
        }
        for j in 0..group.count {
            let node: NodeName = format!("node{}", nodes + j / per_node)
                .parse()
                .expect("a letter and digits are a name");
            devices.push(Device {
                kind: kind.clone(),
                memory,
                multiprocessors: group.sm_count.or(known.map(|known| known.1)),
                node,
                cost_per_hour: group.cost_per_hour.or_else(|| known_cost_per_hour(&kind)),
            });
        }
        nodes += group.count.div_ceil(per_node);
    }
    if devices.is_empty() {
        return field("devices", "expected at least one device");
    }
    Ok(devices)
}

fn profiles(
    paths: &[String],
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<ProfileTable, ScenarioError> {
    let mut table = ProfileTable::default();
    for path in paths {
        let text = load(path)?;
        let read = ProfileTable::from_csv(&text).map_err(|source| ScenarioError::Profiles {
            path: path.clone(),
            source,
        })?;
        for (model, kind, profile) in read.iter() {
            table.insert(model.clone(), kind.clone(), profile.clone());
        }
    }
    Ok(table)
}

fn model(
    i: usize,
    entry: &ModelEntry,
    devices: &[Device],
    table: &ProfileTable,
    latency_scale: f64,
) -> Result<DemandedModel, ScenarioError> {
    let at = |key: &str| format!("models[{i}].{key}");
    let id: ModelId = entry
        .name
        .parse()
        .or_else(|e: IdError| field(at("name"), e.to_string()))?;
    let profiled = devices
        .iter()
        .filter_map(|device| table.get(&id, &device.kind));
    let largest = profiled
        .filter_map(|profile| profile.whole().last())
        .map(|row| row.batch_size)
        .max();
    let Some(largest) = largest else {
        return field(
            at("name"),
            format!(
                "{} has no profile on any device of the scenario",
                entry.name
            ),
        );
    };
    Ok(DemandedModel {
        id,
        rate: rate(at("rate_rps"), entry.rate_rps)?,
        slo: duration(
            at("slo_ms"),
            positive(at("slo_ms"), entry.slo_ms, 1e10)?,
            MS,
        )?,
        max_batch_size: largest.min(Program::MAX_BATCH_SIZE),
        payload: payload(i, entry.payload_bytes)?,
        load_time: duration(at("load_ms"), entry.load_ms, MS)?,
        latency_scale,
    })
}

fn payload(i: usize, bytes: u64) -> Result<ByteCount, ScenarioError> {
    const LIMIT: u64 = 1 << 40;
    if bytes <= LIMIT {
        return Ok(ByteCount::new(bytes));
    }
    field(
        format!("models[{i}].payload_bytes"),
        format!("expected at most {LIMIT}, not {bytes}"),
    )
}

fn workload(i: usize, entry: &ModelEntry, latency_scale: f64) -> Result<Workload, ScenarioError> {
    let at = |key: &str| format!("models[{i}].{key}");
    let mut over_time = Rate::constant(rate(at("rate_rps"), entry.rate_rps)?);
    for (j, step) in entry.rate_steps.iter().enumerate() {
        let at = |k: usize| format!("models[{i}].rate_steps[{j}][{k}]");
        let (from, to, over) = match step[..] {
            [from, to] => (from, to, 0.0),
            [from, to, over] => (from, to, over),
            _ => {
                let problem = format!(
                    "expected [from_s, rate_rps] or [from_s, rate_rps, over_s], not {} numbers",
                    step.len()
                );
                return field(format!("models[{i}].rate_steps[{j}]"), problem);
            }
        };
        let from = Time::ZERO + duration(at(0), from, S)?;
        let over = duration(at(2), over, S)?;
        if !over_time.change(from, over, rate(at(1), to)?) {
            return field(at(0), "expected a moment after 0 and after the step before");
        }
    }
    let scale = match entry.latency_scale {
        Some(scale) => positive(at("latency_scale"), scale, 1e3)?,
        None => positive("simulation.latency_scale", latency_scale, 1e3)?,
    };
    Ok(Workload {
        requests: entry.requests,
        rate: over_time,
        latency_scale: scale,
    })
}

fn arrivals(
    entry: &ArrivalsEntry,
    models: &[&ModelId],
    workloads: &mut [Workload],
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<Arrivals, ScenarioError> {
    let wrong = |path: &str| {
        let path = path.to_owned();
        move |source| ScenarioError::Trace { path, source }
    };
    match entry {
        ArrivalsEntry::Poisson => Ok(Arrivals::Poisson),
        ArrivalsEntry::GammaCv(cv) => Ok(Arrivals::Gamma(positive(
            "simulation.arrivals.gamma_cv",
            *cv,
            100.0,
        )?)),
        ArrivalsEntry::Trace(path) => trace::moments(&load(path)?, models)
            .map(Arrivals::Trace)
            .map_err(wrong(path)),
        ArrivalsEntry::Counts(path) => {
            let rates: Vec<RequestsPerSecond> = workloads
                .iter()
                .map(|workload| workload.rate.initial())
                .collect();
            let scaled = trace::counts(&load(path)?, &rates).map_err(wrong(path))?;
            for (i, (workload, rate)) in workloads.iter_mut().zip(scaled).enumerate() {
                if !workload.rate.is_constant() {
                    return field(
                        format!("models[{i}].rate_steps"),
                        "the counts of a trace give the rate already",
                    );
                }
                workload.rate = rate;
            }
            Ok(Arrivals::Poisson)
        }
    }
}

fn simulation(
    entry: &SimulationEntry,
    arrivals: Arrivals,
    devices: &[Device],
) -> Result<Simulation, ScenarioError> {
    let interference = Interference::new(entry.mps_exponent, entry.extra_slowdown)
        .or_else(|e| field("simulation", e.to_string()))?;
    let window = duration("simulation.window_s", entry.window_s, S)?;
    if window.is_zero() {
        return field("simulation.window_s", "expected above 0");
    }
    let faults = entry
        .faults
        .iter()
        .enumerate()
        .map(|(i, entry)| fault(i, entry, devices))
        .collect::<Result<_, _>>()?;
    Ok(Simulation {
        warmup: duration("simulation.warmup_s", entry.warmup_s, S)?,
        window,
        client_overhead: duration(
            "simulation.client_overhead_ms",
            entry.client_overhead_ms,
            MS,
        )?,
        router_overhead: duration(
            "simulation.router_overhead_ms",
            entry.router_overhead_ms,
            MS,
        )?,
        network: NetworkModel {
            base: duration("simulation.network_base_ms", entry.network_base_ms, MS)?,
            bytes_per_second: bandwidth(entry.network_bytes_per_s)?,
        },
        return_time: duration("simulation.return_ms", entry.return_ms, MS)?,
        interference,
        arrivals,
        faults,
    })
}

fn fault(i: usize, entry: &FaultEntry, devices: &[Device]) -> Result<Fault, ScenarioError> {
    let at = |key: &str| format!("simulation.faults[{i}].{key}");
    let wants = |key: &str, given: bool, wanted: bool| match (given, wanted) {
        (true, false) => field(at(key), "not a key of this kind of fault"),
        (false, true) => field(at(key), "missing"),
        _ => Ok(()),
    };
    let on_device = matches!(
        entry.kind,
        FaultKindEntry::WorkerDies | FaultKindEntry::SlowWorker
    );
    wants("device", entry.device.is_some(), on_device)?;
    wants(
        "factor",
        entry.factor.is_some(),
        matches!(entry.kind, FaultKindEntry::SlowWorker),
    )?;
    wants(
        "delay_ms",
        entry.delay_ms.is_some(),
        matches!(entry.kind, FaultKindEntry::NetworkDelay),
    )?;
    wants(
        "node",
        entry.node.is_some(),
        matches!(entry.kind, FaultKindEntry::NodeLost),
    )?;
    let device = DeviceIndex(entry.device.unwrap_or_default());
    if device.0 >= devices.len() {
        return field(
            at("device"),
            format!("expected below {}, the number of devices", devices.len()),
        );
    }
    let kind = match entry.kind {
        FaultKindEntry::WorkerDies => FaultKind::WorkerDies(device),
        FaultKindEntry::SlowWorker => FaultKind::SlowWorker(
            device,
            positive(at("factor"), entry.factor.unwrap_or_default(), 1e3)?,
        ),
        FaultKindEntry::NetworkDelay => FaultKind::NetworkDelay(duration(
            at("delay_ms"),
            entry.delay_ms.unwrap_or_default(),
            MS,
        )?),
        FaultKindEntry::NodeLost => {
            let node = entry.node.unwrap_or_default();
            let nodes: BTreeSet<&NodeName> = devices.iter().map(|device| &device.node).collect();
            if node >= nodes.len() {
                return field(
                    at("node"),
                    format!("expected below {}, the number of nodes", nodes.len()),
                );
            }
            FaultKind::NodeLost(node)
        }
    };
    Ok(Fault {
        at: Time::ZERO + duration(at("at_s"), entry.at_s, S)?,
        lasts: duration(at("for_s"), entry.for_s, S)?,
        kind,
    })
}

#[cfg(test)]
mod tests;
