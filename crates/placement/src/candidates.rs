//! The batch sizes that a model can have on a kind of device, and the reason if there are none.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ByteCount, DemandedModel, DeviceIndex, DeviceKind, ModelIndex, Problem, Profile, Shortfall,
};

/// A batch size that a replica can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// The number of rows.
    pub(crate) batch_size: u32,
    /// The time of a full batch, alone on the device; at most the SLO.
    pub(crate) latency: Duration,
    /// The memory of the replica; `None` if it was not measured.
    pub(crate) memory: Option<ByteCount>,
    /// The throughput of full batches, in rows per second.
    pub(crate) throughput: f64,
}

/// The reason why a model cannot run on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Infeasible {
    /// The model has no profile on the kind.
    NoProfile,
    /// Every batch takes longer than the SLO.
    TooSlow {
        /// The size of the fastest batch.
        batch_size: u32,
        /// The time of the fastest batch.
        latency: Duration,
    },
}

/// The candidates of every model on every device, computed once per kind of device.
pub(crate) struct Candidates<'a> {
    problem: &'a Problem,
    kinds: Vec<&'a DeviceKind>,
    /// The index in `kinds` of each device's kind.
    kind_of: Vec<usize>,
    /// The candidates by model, then kind; not empty and ordered by batch size.
    table: Vec<Vec<Result<Vec<Candidate>, Infeasible>>>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(problem: &'a Problem) -> Self {
        let mut numbers = BTreeMap::new();
        let mut kinds = Vec::new();
        let mut kind_of = Vec::new();
        for device in &problem.devices {
            let number = *numbers.entry(&device.kind).or_insert_with(|| {
                kinds.push(&device.kind);
                kinds.len() - 1
            });
            kind_of.push(number);
        }
        let of_model = |model| {
            kinds
                .iter()
                .map(|kind| candidates(problem, model, kind))
                .collect()
        };
        let table = problem.models().map(|(model, _)| of_model(model)).collect();
        Self {
            problem,
            kinds,
            kind_of,
            table,
        }
    }

    /// Returns the model's candidates on the device, ordered by batch size; empty if the model cannot run there.
    pub(crate) fn on_device(&self, model: ModelIndex, device: DeviceIndex) -> &[Candidate] {
        self.table[model.0][self.kind_of[device.0]]
            .as_deref()
            .unwrap_or_default()
    }

    /// Returns the index of a device's kind.
    pub(crate) fn kind_index(&self, device: DeviceIndex) -> usize {
        self.kind_of[device.0]
    }

    /// Returns the throughput of full batches on the fastest kind, in rows per second; 0 if the model can run on no kind.
    pub(crate) fn best_throughput(&self, model: ModelIndex) -> f64 {
        let all = self.table[model.0].iter().flatten().flatten();
        all.map(|candidate| candidate.throughput)
            .fold(0.0, f64::max)
    }

    /// Returns the reason why the model can run on no device, even alone; `None` if it can run on one.
    pub(crate) fn infeasible(&self, model: ModelIndex) -> Option<Shortfall> {
        let of_kinds = &self.table[model.0];
        if self.kinds.is_empty() {
            return Some(Shortfall::NoDevices);
        }
        if of_kinds.iter().any(Result::is_ok) {
            return None;
        }
        let slow =
            of_kinds
                .iter()
                .zip(&self.kinds)
                .filter_map(|(candidates, kind)| match candidates {
                    Err(Infeasible::TooSlow {
                        batch_size,
                        latency,
                    }) => Some((latency, batch_size, kind)),
                    _ => None,
                });
        let slo = self.problem.models[model.0].slo;
        let too_slow = slow
            .min()
            .map(|(latency, batch_size, kind)| Shortfall::BatchOverSlo {
                slo,
                batch_size: *batch_size,
                latency: *latency,
                kind: (**kind).clone(),
            });
        Some(too_slow.unwrap_or_else(|| Shortfall::NoProfile {
            kinds: self.kinds.iter().map(|kind| (*kind).clone()).collect(),
        }))
    }
}

/// Returns the largest batch size up to the model's limit and the largest profiled one, for policies that interpolate the profile.
pub(crate) fn largest_batch(profile: &Profile, model: &DemandedModel) -> u32 {
    let rows = profile.whole();
    let profiled = rows[rows.len() - 1].batch_size;
    profiled.min(model.max_batch_size).max(1)
}

/// Returns the profiled batch sizes that the model accepts and that are within its SLO. If all profiled sizes are above the model's
/// limit, the only candidate is the limit, with the latency that the profile extrapolates.
fn candidates(
    problem: &Problem,
    model: ModelIndex,
    kind: &DeviceKind,
) -> Result<Vec<Candidate>, Infeasible> {
    let model = &problem.models[model.0];
    let profile = problem
        .profiles
        .get(&model.id, kind)
        .ok_or(Infeasible::NoProfile)?;
    let profiled = profile.whole().iter().map(|row| row.batch_size);
    let mut sizes: Vec<u32> = profiled
        .filter(|&size| size <= model.max_batch_size)
        .collect();
    if sizes.is_empty() {
        sizes.push(model.max_batch_size.max(1));
    }
    let candidates = sizes.into_iter().map(|batch_size| {
        let latency = profile.latency(batch_size);
        let throughput = f64::from(batch_size) / latency.as_secs_f64();
        Candidate {
            batch_size,
            latency,
            memory: profile.memory(batch_size),
            throughput,
        }
    });
    let (feasible, slow): (Vec<_>, Vec<_>) =
        candidates.partition(|candidate| candidate.latency <= model.slo);
    match slow.iter().min_by_key(|candidate| candidate.latency) {
        Some(fastest) if feasible.is_empty() => Err(Infeasible::TooSlow {
            batch_size: fastest.batch_size,
            latency: fastest.latency,
        }),
        _ => Ok(feasible),
    }
}
