//! Scenarios: devices, models with their load, profiles, and the settings of the simulation.
//!
//! [`Scenario::parse`] reads the TOML. Every number is checked against its range, and an error names the field and the range.
//! A closure returns the text of the files that a scenario names, so that nothing here reads a disk.

mod autoscale;
mod context;
mod family;
mod fault;
mod planning_input;
mod values;

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ByteCount, Conditions, DemandedModel, Device, DeviceIndex, DeviceKind, DeviceObservation,
    DevicePool, IdError, ModelId, ModelIndex, NetworkModel, NodeName, Problem, ProfileTable,
    Program, RequestsPerSecond, Time, known_cost_per_hour, known_kind,
};
use packhorse_contention::{Interference, PairTable};
pub use packhorse_scenario::Links;
use packhorse_scenario::{
    ArrivalsEntry, DeviceGroup, LearnedEntry, ModelEntry, OrUnknown, Pools, ScenarioFile,
    SimulationEntry, observations_from_csv,
};

use crate::{rate::Rate, trace};
pub use autoscale::Autoscale;
use autoscale::parse_autoscale;
pub use context::PlanningContext;
use context::{exclude_models, parse_context, parse_device_ids, parse_mib};
pub use family::{Family, Variant};
use family::{families_of, parse_families};
pub use fault::{Fault, FaultKind};
use fault::{check_added_models, parse_fault};
pub use values::ScenarioError;
use values::{MAX_DEVICES, MS, S, bandwidth, duration, field_error, positive, requests_per_second};

/// A placement problem, and the simulation in which its plan runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The scenario's name in reports.
    pub name: String,
    /// The problem for a policy, with the devices and models that are added later. Its discipline is the default until a caller sets another
    /// one.
    pub problem: Problem,
    /// The load of each model, in the problem's order.
    pub workloads: Vec<Workload>,
    /// The models that answer each other's requests.
    pub families: Vec<Family>,
    /// The devices that an autoscaler adds and removes; `None` if those of the problem stay.
    pub autoscale: Option<Autoscale>,
    /// The bytes per second from the host's memory to each device, in the problem's order.
    pub host_links: Vec<f64>,
    /// The longest time for which `fixed-wait` holds an open batch.
    pub max_batch_wait: Duration,
    /// The text of the file with the coefficients of `igniter`, if the scenario names one.
    pub igniter_coefficients: Option<String>,
    /// The facts that plans take into account beside the problem.
    pub context: PlanningContext,
    /// The settings of the simulation.
    pub simulation: SimulationSettings,
}

/// The load of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The number of requests that a benchmark of a live gateway sends. A simulation has a window instead.
    pub requests: Option<u64>,
    /// The request rate over time.
    pub rate: Rate,
    /// The simulated inference time over the profile's.
    pub latency_scale: f64,
}

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationSettings {
    /// The time at which the window begins. Earlier arrivals are not counted.
    pub warmup: Duration,
    /// The length of the window. Arrivals in `[warmup, warmup + window)` are counted.
    pub window: Duration,
    /// The time of a client's own work per request, which it begins when the request is due.
    pub client_overhead: Duration,
    /// The time of handing a batch over, before the network.
    pub router_overhead: Duration,
    /// The network from the gateway to a worker.
    pub network: NetworkModel,
    /// The way in which the batches of a device share its link.
    pub links: Links,
    /// The time from a worker to the client.
    pub return_time: Duration,
    /// The cost of co-location and of compute shares.
    pub interference: Interference,
    /// The pattern of arrivals.
    pub arrivals: Arrivals,
    /// The faults.
    pub faults: Vec<Fault>,
}

impl SimulationSettings {
    /// Returns the settings that a problem contains: all but the extra slowdown and the faults.
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

/// The pattern in which requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Poisson processes: gaps are exponential.
    Poisson,
    /// Gaps have a gamma distribution with this coefficient of variation, above 0. Above 1, arrivals are burstier than Poisson's.
    Gamma(f64),
    /// The arrivals of each model, ascending, in the problem's order.
    Trace(Vec<Vec<Time>>),
}

impl Arrivals {
    /// The coefficient of variation of the gaps. In a trace, each gap is relative to the mean gap of its model.
    fn variation(&self) -> f64 {
        match self {
            Self::Poisson => 1.0,
            Self::Gamma(variation) => *variation,
            Self::Trace(arrivals) => trace::gap_variation(arrivals),
        }
    }
}

/// The largest number of models in a scenario.
const MAX_MODELS: usize = 10_000;
/// The bytes per second from a host's memory to a device unless the scenario says otherwise: `PCIe` 3.0 with 16 lanes. Source: the transfers in
/// appendix A of "Serving DNNs like Clockwork" (OSDI 2020), 12.2 to 12.6 MB/ms.
const HOST_LINK: f64 = 12e9;
/// The rows for which a model without `weights_mib` needs memory: the largest batch of `clockwork`.
const WEIGHTS_ROWS: u32 = 16;

impl Scenario {
    /// Returns the mean rate of a model between two times, in requests/s: that of the arrival process, or of the arrivals of a trace.
    pub fn mean_rate(&self, model: ModelIndex, from: Time, until: Time) -> f64 {
        let seconds = until.saturating_since(from).as_secs_f64();
        if seconds <= 0.0 {
            return 0.0;
        }
        let requests = match &self.simulation.arrivals {
            Arrivals::Poisson | Arrivals::Gamma(_) => {
                let rate = &self.workloads[model.0].rate;
                rate.requests_between(from, until)
            }
            Arrivals::Trace(arrivals) => {
                let arrivals = &arrivals[model.0];
                let before = |time: Time| arrivals.partition_point(|&arrival| arrival < time);
                (before(until) - before(from)) as f64
            }
        };
        requests / seconds
    }

    /// Returns the memory of a model's weights on a device, in bytes; `None` if the device cannot run it.
    pub(crate) fn weights(&self, model: usize, device: usize) -> Option<u64> {
        let profile = self
            .problem
            .profile(ModelIndex(model), DeviceIndex(device))?;
        let memory = self.problem.devices[device].memory;
        let rows = self.problem.models[model].max_batch_size.min(WEIGHTS_ROWS);
        let profiled = || profile.memory(rows).unwrap_or(memory);
        let weights = self.problem.models[model].weights.unwrap_or_else(profiled);
        (weights <= memory).then_some(weights.as_u64())
    }

    /// Returns the bytes per second from the host's memory to a device.
    pub(crate) fn host_link(&self, device: usize) -> f64 {
        self.host_links.get(device).copied().unwrap_or(HOST_LINK)
    }

    /// Returns true if a model is registered only during the run.
    pub fn is_added_later(&self, model: ModelIndex) -> bool {
        let added = FaultKind::ModelAdded(model);
        let mut faults = self.simulation.faults.iter();
        faults.any(|fault| fault.kind == added)
    }

    /// Returns the number of devices at the start of the run. They are the first ones of the problem.
    pub(crate) fn devices_at_start(&self) -> usize {
        let autoscale = self.autoscale.as_ref();
        autoscale.map_or(self.problem.devices.len(), |autoscale| {
            autoscale.devices_at_start
        })
    }

    /// Returns the problem at the start of the run: without the models and devices that are added later, which are the last ones.
    pub fn problem_at_start(&self) -> Problem {
        let mut problem = self.problem.clone();
        problem.devices.truncate(self.devices_at_start());
        let mut number = 0;
        problem.models.retain(|_| {
            number += 1;
            !self.is_added_later(ModelIndex(number - 1))
        });
        let (models, devices) = (problem.models.len(), problem.devices.len());
        let current = &mut problem.current;
        current.retain(|replica| replica.model.0 < models && replica.device.0 < devices);
        problem
    }

    /// Reads the TOML of a scenario. `load` returns the text of a file that the scenario names, by its path there (relative to the
    /// scenario's own file), or the reason why it cannot be read.
    ///
    /// # Errors
    /// Returns the first error in the scenario, with field and range.
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
        let Some(groups) = &file.devices else {
            return field_error("devices", "expected at least one device, or an empty list");
        };
        let Some(entries) = &file.models else {
            let problem = format!("expected 1 to {MAX_MODELS} models, or an empty list");
            return field_error("models", problem);
        };
        let mut devices = parse_devices(groups, file.pool)?;
        let autoscale = file.autoscale.as_ref();
        let autoscale = autoscale
            .map(|entry| parse_autoscale(entry, groups, &mut devices))
            .transpose()?;
        if autoscale.is_some() && file.pool == Pools::Auto {
            let problem =
                "expected no \"auto\" beside [autoscale]: plans with pools stay during a run";
            return field_error("pool", problem);
        }
        let device_ids = parse_device_ids(groups, &devices)?;
        let kinds = devices.iter().map(|device| device.kind.clone());
        let kinds: BTreeMap<_, _> = device_ids.iter().cloned().zip(kinds).collect();
        let mut profiles = load_profiles(&file, &mut load)?;
        if entries.len() > MAX_MODELS {
            let problem = format!(
                "expected at most {MAX_MODELS} models, not {}",
                entries.len()
            );
            return field_error("models", problem);
        }
        for (i, entry) in entries.iter().enumerate() {
            take_profile_of(i, entry, &mut profiles)?;
        }
        exclude_models(groups, &mut devices, &mut profiles);
        let mut models = Vec::new();
        let mut workloads = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let workload = parse_workload(i, entry, file.simulation.latency_scale)?;
            let scale = workload.latency_scale;
            models.push(parse_model(i, entry, &devices, &profiles, scale)?);
            workloads.push(workload);
        }
        let mut families = parse_families(entries, &models)?;
        let ids: Vec<&ModelId> = models.iter().map(|model| &model.id).collect();
        let arrivals = parse_arrivals(&file.simulation.arrivals, &ids, &mut workloads, &mut load)?;
        let simulation = {
            let names = entries.iter().map(|entry| entry.name.as_str());
            let slos = models.iter().map(|model| model.slo);
            let rows: Vec<_> = names.zip(slos).collect();
            parse_settings(&file.simulation, arrivals, &devices, &rows)?
        };
        for (i, model) in models.iter().enumerate() {
            if simulation.window < model.slo {
                let problem = format!(
                    "expected at least {} s, the SLO of models[{i}], not {} s",
                    model.slo.as_secs_f64(),
                    simulation.window.as_secs_f64()
                );
                return field_error("simulation.window_s", problem);
            }
        }
        let max_batch_wait = duration("max_batch_wait_ms", file.max_batch_wait_ms, MS)?;
        let mut observations = load_measured_pairs(&file, &devices, &profiles, &mut load)?;
        observations.extend(parse_observations(&file.learned)?);
        let mut problem = Problem {
            devices,
            models,
            profiles,
            observations,
            network: simulation.network,
            conditions: simulation.conditions(max_batch_wait),
            ..Problem::default()
        };
        problem.validate().map_err(ScenarioError::Problem)?;
        let context = parse_context(&file, device_ids, kinds, &mut problem)?;
        families.extend(families_of(&context.families, &problem.models));
        let igniter_coefficients = file
            .igniter_coefficients
            .as_deref()
            .map(&mut load)
            .transpose()?;
        Ok(Self {
            name: file.name,
            problem,
            workloads,
            families,
            autoscale,
            host_links: parse_host_links(groups)?,
            max_batch_wait,
            igniter_coefficients,
            context,
            simulation,
        })
    }
}

/// Reads the pairs that were measured on the first device's kind.
fn load_measured_pairs(
    file: &ScenarioFile,
    devices: &[Device],
    profiles: &ProfileTable,
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<Vec<DeviceObservation>, ScenarioError> {
    let mut observations = Vec::new();
    for (i, name) in file.measured_pairs.iter().enumerate() {
        let pairs = PairTable::from_csv(&load(name)?)
            .or_else(|e| field_error(format!("measured_pairs[{i}]"), format!("{name}: {e}")))?;
        if let Some(device) = devices.first() {
            observations.extend(pairs.observations(&device.kind, profiles));
        }
    }
    Ok(observations)
}

/// Reads the observations in the scenario itself.
fn parse_observations(learned: &LearnedEntry) -> Result<Vec<DeviceObservation>, ScenarioError> {
    let csv = learned.observations.as_deref().unwrap_or_default();
    observations_from_csv(csv).or_else(|e| field_error("learned.observations", e.to_string()))
}

fn parse_devices(groups: &[DeviceGroup], pools: Pools) -> Result<Vec<Device>, ScenarioError> {
    let mut devices = Vec::new();
    let mut nodes = 0;
    for (i, group) in groups.iter().enumerate() {
        let at = |key: &str| format!("devices[{i}].{key}");
        let kind: DeviceKind = group
            .kind
            .parse()
            .or_else(|e: IdError| field_error(at("kind"), e.to_string()))?;
        let known = known_kind(&kind);
        let memory = match (group.memory_mib, known) {
            (Some(mib), _) => parse_mib(at("memory_mib"), mib)?,
            (None, Some((memory, _))) => memory,
            (None, None) => {
                return field_error(
                    at("memory_mib"),
                    format!("required, because the memory of {kind} is not known"),
                );
            }
        };
        let per_node = group.gpus_per_node.unwrap_or(group.count.max(1));
        if per_node == 0 {
            return field_error(at("gpus_per_node"), "expected at least 1");
        }
        if group.count > MAX_DEVICES - devices.len() {
            return field_error(
                at("count"),
                format!("expected at most {MAX_DEVICES} devices in all"),
            );
        }
        if group.node.is_some() && group.gpus_per_node.is_some() {
            return field_error(at("gpus_per_node"), "expected no number beside a node");
        }
        let cost = group.cost_per_hour.map(OrUnknown::known);
        if let Some(cost) = cost.flatten().filter(|cost| !(0.0..=1e9).contains(cost)) {
            return field_error(
                at("cost_per_hour"),
                format!("expected between 0 and 1e9, not {cost}"),
            );
        }
        let pool = DevicePool {
            host_link_bytes_per_second: parse_host_link(i, group)?,
            process: parse_mib(at("process_mib"), group.process_mib)?,
            own_workers: group.own_workers,
        };
        let has_pool = group.pool.unwrap_or(pools) == Pools::Auto;
        let multiprocessors = group.sm_count.map(OrUnknown::known);
        for j in 0..group.count {
            let number = nodes + j / per_node;
            let node = || numbered_node(number);
            devices.push(Device {
                kind: kind.clone(),
                memory,
                multiprocessors: multiprocessors.unwrap_or(known.map(|known| known.1)),
                node: group.node.clone().unwrap_or_else(node),
                cost_per_hour: cost.unwrap_or_else(|| known_cost_per_hour(&kind)),
                pool: has_pool.then_some(pool),
            });
        }
        nodes += group.count.div_ceil(per_node);
    }
    if devices.is_empty() && !groups.is_empty() {
        return field_error("devices", "expected at least one device, or an empty list");
    }
    Ok(devices)
}

/// Returns the name of the node of this number.
fn numbered_node(number: usize) -> NodeName {
    let name = format!("node{number}");
    name.parse().expect("a letter and digits are a name")
}

/// Reads the bytes per second from the host's memory to each device.
fn parse_host_links(groups: &[DeviceGroup]) -> Result<Vec<f64>, ScenarioError> {
    let mut links = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        links.extend(std::iter::repeat_n(parse_host_link(i, group)?, group.count));
    }
    Ok(links)
}

/// Reads the bytes per second from the host's memory to each device of the `i`-th group.
fn parse_host_link(i: usize, group: &DeviceGroup) -> Result<f64, ScenarioError> {
    let link = group.host_link_bytes_per_s.unwrap_or(HOST_LINK);
    bandwidth(format!("devices[{i}].host_link_bytes_per_s"), link)
}

/// Gives a model the profiles of the one that it names.
fn take_profile_of(
    i: usize,
    entry: &ModelEntry,
    profiles: &mut ProfileTable,
) -> Result<(), ScenarioError> {
    let Some(name) = &entry.profile else {
        return Ok(());
    };
    let id = |key: &str, name: &str| -> Result<ModelId, ScenarioError> {
        let id = name.parse();
        id.or_else(|e: IdError| field_error(format!("models[{i}].{key}"), e.to_string()))
    };
    let (id, like) = (id("name", &entry.name)?, id("profile", name)?);
    let of_model = profiles.of_model(&like);
    let of_model: Vec<_> = of_model
        .map(|(kind, profile)| (kind.clone(), profile.clone()))
        .collect();
    if of_model.is_empty() {
        let problem = format!("the scenario's profiles have no {name}");
        return field_error(format!("models[{i}].profile"), problem);
    }
    for (kind, profile) in of_model {
        profiles.insert(id.clone(), kind, profile);
    }
    Ok(())
}

fn load_profiles(
    file: &ScenarioFile,
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<ProfileTable, ScenarioError> {
    let mut table = ProfileTable::default();
    let mut add = |path: &str, text: &str| {
        let read = ProfileTable::from_csv(text).map_err(|source| ScenarioError::Profiles {
            path: path.to_owned(),
            source,
        })?;
        for (model, kind, profile) in read.iter() {
            table.insert(model.clone(), kind.clone(), profile.clone());
        }
        Ok(())
    };
    for path in &file.profiles {
        add(path, &load(path)?)?;
    }
    if let Some(text) = &file.learned.profiles {
        add("learned.profiles", text)?;
    }
    Ok(table)
}

fn parse_model(
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
        .or_else(|e: IdError| field_error(at("name"), e.to_string()))?;
    let profiled = devices
        .iter()
        .filter_map(|device| table.get(&id, &device.kind));
    let largest = profiled
        .filter_map(|profile| profile.whole().last())
        .map(|row| row.batch_size)
        .max();
    let max = Program::MAX_BATCH_SIZE;
    let max_batch_size = match (entry.max_batch_size, largest) {
        (Some(rows), _) if (1..=max).contains(&rows) => rows,
        (Some(rows), _) => {
            let problem = format!("expected between 1 and {max}, not {rows}");
            return field_error(at("max_batch_size"), problem);
        }
        (None, Some(largest)) => largest.min(max),
        (None, None) => {
            let name = &entry.name;
            let problem = format!("{name} has no profile on any device of the scenario");
            return field_error(at("name"), problem);
        }
    };
    Ok(DemandedModel {
        id,
        rate: requests_per_second(at("rate_rps"), entry.rate_rps)?,
        need: entry.need_rps,
        priority: entry.priority.unwrap_or_default(),
        min_replicas: entry.min_replicas.unwrap_or_default(),
        slo: duration(
            at("slo_ms"),
            positive(at("slo_ms"), entry.slo_ms, 1e10)?,
            MS,
        )?,
        max_batch_size,
        payload: parse_payload(i, entry.payload_bytes)?,
        load_time: duration(at("load_ms"), entry.load_ms, MS)?,
        latency_scale,
        weights: entry
            .weights_mib
            .map(|mib| parse_mib(at("weights_mib"), mib))
            .transpose()?,
    })
}

fn parse_payload(i: usize, bytes: u64) -> Result<ByteCount, ScenarioError> {
    const LIMIT: u64 = 1 << 40;
    if bytes <= LIMIT {
        return Ok(ByteCount::new(bytes));
    }
    field_error(
        format!("models[{i}].payload_bytes"),
        format!("expected at most {LIMIT}, not {bytes}"),
    )
}

fn parse_workload(
    i: usize,
    entry: &ModelEntry,
    latency_scale: f64,
) -> Result<Workload, ScenarioError> {
    let at = |key: &str| format!("models[{i}].{key}");
    let mut rate = Rate::constant(requests_per_second(at("rate_rps"), entry.rate_rps)?);
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
                return field_error(format!("models[{i}].rate_steps[{j}]"), problem);
            }
        };
        let from = Time::ZERO + duration(at(0), from, S)?;
        let over = duration(at(2), over, S)?;
        if !rate.append_change(from, over, requests_per_second(at(1), to)?) {
            return field_error(at(0), "expected a time after 0 and after the previous step");
        }
    }
    let scale = match entry.latency_scale {
        Some(scale) => positive(at("latency_scale"), scale, 1e3)?,
        None => positive("simulation.latency_scale", latency_scale, 1e3)?,
    };
    Ok(Workload {
        requests: entry.requests,
        rate,
        latency_scale: scale,
    })
}

fn parse_arrivals(
    entry: &ArrivalsEntry,
    models: &[&ModelId],
    workloads: &mut [Workload],
    load: &mut dyn FnMut(&str) -> Result<String, ScenarioError>,
) -> Result<Arrivals, ScenarioError> {
    let trace_error = |path: &str| {
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
        ArrivalsEntry::Trace(path) => trace::parse_arrivals(&load(path)?, models)
            .map(Arrivals::Trace)
            .map_err(trace_error(path)),
        ArrivalsEntry::Counts(path) => {
            let rates: Vec<RequestsPerSecond> = workloads
                .iter()
                .map(|workload| workload.rate.initial())
                .collect();
            let scaled = trace::parse_counts(&load(path)?, &rates).map_err(trace_error(path))?;
            for (i, (workload, rate)) in workloads.iter_mut().zip(scaled).enumerate() {
                if !workload.rate.is_constant() {
                    return field_error(
                        format!("models[{i}].rate_steps"),
                        "not allowed with arrivals = { counts = … }, which contains the rate over time",
                    );
                }
                workload.rate = rate;
            }
            Ok(Arrivals::Poisson)
        }
    }
}

fn parse_settings(
    entry: &SimulationEntry,
    arrivals: Arrivals,
    devices: &[Device],
    models: &[(&str, Duration)],
) -> Result<SimulationSettings, ScenarioError> {
    let interference = Interference::new(entry.mps_exponent, entry.extra_slowdown)
        .or_else(|e| field_error("simulation", e.to_string()))?;
    let window = duration("simulation.window_s", entry.window_s, S)?;
    if window.is_zero() {
        return field_error("simulation.window_s", "expected above 0");
    }
    let faults = entry
        .faults
        .iter()
        .enumerate()
        .map(|(i, entry)| parse_fault(i, entry, devices, models))
        .collect::<Result<Vec<_>, _>>()?;
    check_added_models(&faults, models.len())?;
    Ok(SimulationSettings {
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
            bytes_per_second: bandwidth(
                "simulation.network_bytes_per_s",
                entry.network_bytes_per_s,
            )?,
        },
        links: entry.links,
        return_time: duration("simulation.return_ms", entry.return_ms, MS)?,
        interference,
        arrivals,
        faults,
    })
}

#[cfg(test)]
mod tests;
