//! `igniter`: the fewest devices on which an analytical model of interference keeps every model within its SLO.
//!
//! Every model has one batch size `b` and a share `r` of the multiprocessors, in percent. `T = SLO / 2` is the limit of a batch's
//! latency, the other half being the time until a batch is full. [`IgniterCoefficients`] contains the latency model (section 3 of the
//! paper).
//!
//! 1. *Batch and lower bound* (theorem 1). `b = ceil(T · λ · B / (B + d_in · λ))` is the batch that arrives and is copied in within `T`,
//!    with `λ` the rate, `d_in` the bytes of an input and `B` the bytes per second of the bus. The share with which that batch is computed
//!    within `T` alone on the device is `r = (k₁b² + k₂b + k₃) / (T − t_sch − copying − k₅) − k₄`, rounded up to the device's unit.
//! 2. *Too much for a device* (from the published code). A model with `r > 100` gets devices of its own, with the largest batch that
//!    takes at most `T` on a whole device, each for 90 % of its throughput, until the rest of its rate has `r ≤ 100`.
//! 3. *Placement* (algorithms 1 and 2). Models in descending order of `r`. On every opened device a model is tried with its `r`: as long
//!    as any model of the device takes longer than `T`, each of those gets one more unit. Among the devices where this ends with a sum of
//!    at most 100 %, the model goes to the one where the sum of shares grew least beyond the model's own `r`; if there is none, a new
//!    device is opened.
//!
//! On a fixed cluster this is best effort (thesis 5.1.5): devices are used in the order in which the algorithm opened them, and those
//! beyond the cluster are left out. The predicted goodput is the model's throughput under interference, up to the rate.
//!
//! Source: Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud", TPDS 2023, and
//! its published code (icloud-ecnu/igniter).
//!
//! Deviations:
//! - A batch is at most the model's largest and at most 32, the largest that was measured; the published code has no limit.
//! - If `T` is over before the computation starts (`T ≤ t_sch + copying + k₅`), the batch is made smaller until it is not; the published
//!   code then divides by zero or a negative number.
//! - Dedicated devices have the batch that was computed for them; the published code stores another one because of a wrong index.
//! - The memory of a device is a limit if the profiles contain memory; the published code has no such limit.
//! - A rate above the throughput of the placed replicas is reported; the published code does not check it.
//! - Devices of several kinds: a model is placed on the first kind, in the order of the devices, that it has coefficients for.
//! - The shadow servers that the published system starts are not part of placement and are left out.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ByteCount, ComputeShare, DemandedModel, DeviceIndex, ModelForecast, ModelIndex, Plan,
    PlannedReplica, Problem, Shortfall,
};

use self::{
    coefficients::IgniterCoefficients,
    latency::{Prediction, Workload},
    sizing::BatchAndShare,
};
use crate::{
    Budget, PlaceError, PlanningOptions, Policy, PredictError, Predictor,
    candidates::Candidates,
    device_classes::{DeviceClass, device_classes},
    forecast::forecast,
    tolerance::PERCENT_ROUNDING,
};

pub(crate) mod coefficients;
mod latency;
pub(crate) mod least_squares;
mod sizing;
#[cfg(test)]
mod tests;

pub(crate) const NAME: &str = "igniter";

pub(crate) struct Igniter;

impl Policy for Igniter {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        budget.spend((problem.devices.len() * problem.models.len()) as u64)?;
        let none = IgniterCoefficients::default();
        let coefficients = options.igniter_coefficients.as_ref().unwrap_or(&none);
        let mut placement = Placement::new(problem, coefficients);
        let mut sized = Vec::new();
        for (model, _) in problem.models() {
            match placement.size_model(model) {
                Ok(remainder) => sized.extend(remainder),
                Err(reason) => placement.shortfalls[model.0] = Some(reason),
            }
        }
        sized.sort_by(|a, b| b.share.total_cmp(&a.share));
        for model in sized {
            budget.spend(placement.opened.len() as u64 + 1)?;
            placement.place(model);
        }
        Ok(placement.into_plan())
    }

    fn predictor(&self) -> Option<&dyn Predictor> {
        Some(self)
    }
}

impl Predictor for Igniter {
    /// Source: iGniter, equations 1 to 11. A replica without a compute share has the whole device.
    fn latencies(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let none = IgniterCoefficients::default();
        let coefficients = options.igniter_coefficients.as_ref().unwrap_or(&none);
        let mut devices: BTreeMap<DeviceIndex, Vec<usize>> = BTreeMap::new();
        let mut workloads = Vec::new();
        for (number, replica) in replicas.iter().enumerate() {
            let model = &problem.models[replica.model.0].id;
            let kind = &problem.devices[replica.device.0].kind;
            let (hardware, fitted) =
                coefficients
                    .workload(model, kind)
                    .ok_or_else(|| PredictError::Unknown {
                        replica: number,
                        model: model.clone(),
                        kind: kind.clone(),
                        missing: "iGniter coefficients",
                    })?;
            let workload = Workload {
                hardware,
                model: fitted,
                batch: replica.batch_size,
            };
            let share = replica.compute_share.unwrap_or(ComputeShare::WHOLE);
            workloads.push((workload, share.get()));
            devices.entry(replica.device).or_default().push(number);
        }
        let mut latencies = vec![Duration::ZERO; replicas.len()];
        for numbers in devices.values() {
            let colocated: Vec<_> = numbers.iter().map(|&number| workloads[number]).collect();
            for (&number, prediction) in numbers.iter().zip(latency::predict(&colocated)) {
                latencies[number] = Duration::from_secs_f64(prediction.latency_ms / 1e3);
            }
        }
        Ok(latencies)
    }
}

/// A model with its batch size and share.
#[derive(Clone)]
struct SizedModel<'a> {
    model: ModelIndex,
    class: usize,
    /// The limit `T` of a batch's latency, in milliseconds.
    limit: f64,
    workload: Workload<'a>,
    /// The share in percent.
    share: f64,
}

/// A device that the algorithm has opened.
struct OpenedDevice<'a> {
    class: usize,
    models: Vec<SizedModel<'a>>,
    /// True if one model has the whole device.
    dedicated: bool,
}

/// A plan in progress.
struct Placement<'a> {
    problem: &'a Problem,
    coefficients: &'a IgniterCoefficients,
    candidates: Candidates<'a>,
    classes: Vec<DeviceClass<'a>>,
    /// The opened devices, in order.
    opened: Vec<OpenedDevice<'a>>,
    /// The reason why a model cannot be sized, by model.
    shortfalls: Vec<Option<Shortfall>>,
}

impl<'a> Placement<'a> {
    fn new(problem: &'a Problem, coefficients: &'a IgniterCoefficients) -> Self {
        Self {
            problem,
            coefficients,
            candidates: Candidates::new(problem),
            classes: device_classes(problem),
            opened: Vec::new(),
            shortfalls: vec![None; problem.models.len()],
        }
    }

    /// Gives a model its batch size and share, and opens devices for it alone if its rate is too much for one. Returns the model with its
    /// remaining rate, if there is any.
    fn size_model(&mut self, model: ModelIndex) -> Result<Option<SizedModel<'a>>, Shortfall> {
        if let Some(infeasible) = self.candidates.infeasible(model) {
            return Err(infeasible);
        }
        let demanded = &self.problem.models[model.0];
        let found = self.classes.iter().enumerate().find_map(|(number, class)| {
            Some((
                number,
                self.coefficients.workload(&demanded.id, class.kind)?,
            ))
        });
        let Some((class, (hardware, fitted))) = found else {
            return Err(Shortfall::NoCoefficients);
        };
        let limit = demanded.slo.as_secs_f64() * 1e3 / 2.0;
        let too_slow = Shortfall::BatchOverHalfSlo { slo: demanded.slo };
        let most = self
            .largest_batch(demanded, class)
            .ok_or(Shortfall::NoMemoryWithCoefficients)?;
        let size = |rate| sizing::size_for_rate(hardware, fitted, limit, rate, most);
        let sized = |BatchAndShare { batch, share }: BatchAndShare| SizedModel {
            model,
            class,
            limit,
            workload: Workload {
                hardware,
                model: fitted,
                batch,
            },
            share,
        };
        let mut rate = demanded.rate.get();
        let mut wanted = size(rate).ok_or_else(|| too_slow.clone())?;
        if wanted.share > 100.0 {
            let whole = sizing::size_for_whole_device(hardware, fitted, limit, most);
            let (whole, capacity) = whole.ok_or_else(|| too_slow.clone())?;
            // Devices beyond the cluster would be left out of the plan in any case.
            let devices = self.classes[class].devices.len();
            let mut dedicated = 0;
            while wanted.share > 100.0 && dedicated < devices {
                self.opened.push(OpenedDevice {
                    class,
                    models: vec![sized(whole)],
                    dedicated: true,
                });
                dedicated += 1;
                rate -= capacity;
                if rate <= 0.0 {
                    return Ok(None);
                }
                wanted = size(rate).ok_or_else(|| too_slow.clone())?;
            }
            if wanted.share > 100.0 {
                return Ok(None);
            }
        }
        Ok(Some(sized(wanted)))
    }

    /// Returns the largest batch that the model accepts and that is within the SLO and the device's memory by the profile.
    fn largest_batch(&self, demanded: &DemandedModel, class: usize) -> Option<u32> {
        let class = &self.classes[class];
        let profile = self.problem.profiles.get(&demanded.id, class.kind)?;
        let fits = |&batch: &u32| {
            let memory = profile.memory(batch).unwrap_or_default();
            profile.latency(batch) <= demanded.slo && memory <= class.memory
        };
        let most = sizing::MAX_BATCH.min(demanded.max_batch_size);
        (1..=most).rev().find(fits)
    }

    /// Places a model on the device where the shares grow least, or on a new device.
    fn place(&mut self, model: SizedModel<'a>) {
        let mut best: Option<(f64, usize, Vec<SizedModel<'a>>)> = None;
        for (number, device) in self.opened.iter().enumerate() {
            if device.dedicated || device.class != model.class {
                continue;
            }
            let before = share_sum(&device.models);
            if let Some(models) = self.with_grown_shares(device, &model) {
                let growth = share_sum(&models) - before - model.share;
                if best
                    .as_ref()
                    .is_none_or(|(least, ..)| growth < least - PERCENT_ROUNDING)
                {
                    best = Some((growth, number, models));
                }
            }
        }
        match best {
            Some((_, number, models)) => self.opened[number].models = models,
            None => self.opened.push(OpenedDevice {
                class: model.class,
                models: vec![model],
                dedicated: false,
            }),
        }
    }

    /// Returns the models of a device with one more, with shares that keep all of them in time; `None` if the device has too little memory
    /// or compute.
    fn with_grown_shares(
        &self,
        device: &OpenedDevice<'a>,
        model: &SizedModel<'a>,
    ) -> Option<Vec<SizedModel<'a>>> {
        let mut models = device.models.clone();
        models.push(model.clone());
        let memory: ByteCount = models
            .iter()
            .filter_map(|sized| {
                let id = &self.problem.models[sized.model.0].id;
                let kind = self.classes[sized.class].kind;
                let profile = self.problem.profiles.get(id, kind)?;
                profile.memory(sized.workload.batch)
            })
            .sum();
        if memory > self.classes[device.class].memory {
            return None;
        }
        let unit = model.workload.hardware.share_unit;
        loop {
            if share_sum(&models) > 100.0 + PERCENT_ROUNDING {
                return None;
            }
            let late: Vec<bool> = predict(&models)
                .iter()
                .zip(&models)
                .map(|(prediction, sized)| prediction.latency_ms > sized.limit)
                .collect();
            if !late.contains(&true) {
                return Some(models);
            }
            for (sized, late) in models.iter_mut().zip(late) {
                sized.share += if late { unit } else { 0.0 };
            }
        }
    }

    /// Assigns devices to the opened ones in their order, as far as there are devices.
    fn into_plan(self) -> Plan {
        let mut plan = Plan::empty(NAME, self.problem, &Shortfall::NoDeviceLeft);
        let mut carried = vec![(0, 0.0); self.problem.models.len()];
        let mut latency = vec![None; self.problem.models.len()];
        let mut free: Vec<_> = self
            .classes
            .iter()
            .map(|class| class.devices.iter())
            .collect();
        for opened in &self.opened {
            let Some(&device) = free[opened.class].next() else {
                continue;
            };
            for (sized, prediction) in opened.models.iter().zip(predict(&opened.models)) {
                let (replicas, rate) = &mut carried[sized.model.0];
                *replicas += 1;
                *rate += prediction.throughput;
                let predicted = Duration::from_secs_f64(prediction.latency_ms / 1e3);
                latency[sized.model.0] = latency[sized.model.0].max(Some(predicted));
                plan.replicas.push(PlannedReplica {
                    model: sized.model,
                    device,
                    batch_size: sized.workload.batch,
                    compute_share: ComputeShare::new(sized.share.min(100.0)).ok(),
                    duty_cycle: None,
                    memory: None,
                    backbone: None,
                    pool: None,
                });
            }
        }
        plan.replicas
            .sort_by_key(|replica| (replica.model, replica.device));
        for (model, demanded) in self.problem.models() {
            let ((replicas, carried), rate) = (carried[model.0], demanded.rate);
            let shortfall = self.shortfalls[model.0].as_ref();
            let forecast = forecast(
                rate,
                replicas,
                carried,
                || shortfall.cloned().unwrap_or(Shortfall::NoDeviceLeft),
                |goodput| Shortfall::ThroughputBesideNeighbours { goodput, rate },
            );
            plan.models[model.0] = ModelForecast {
                latency: latency[model.0],
                ..forecast
            };
        }
        plan
    }
}

/// Returns the sum of the models' shares, in percent.
fn share_sum(models: &[SizedModel<'_>]) -> f64 {
    models.iter().map(|sized| sized.share).sum()
}

/// Returns the predictions for models that share a device.
fn predict(models: &[SizedModel<'_>]) -> Vec<Prediction> {
    let workloads: Vec<(Workload<'_>, f64)> = models
        .iter()
        .map(|sized| (sized.workload, sized.share))
        .collect();
    latency::predict(&workloads)
}
