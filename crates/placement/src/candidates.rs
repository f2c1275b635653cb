//! What may be chosen for a model on a kind of device, and the words for why there is nothing to choose.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ByteCount, DeviceIndex, DeviceKind, ModelIndex, Problem};

/// A batch size that a replica could have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) batch_size: u32,
    /// Of a full batch, alone on the device; at most the SLO.
    pub(crate) latency: Duration,
    /// Where it was measured.
    pub(crate) memory: Option<ByteCount>,
    /// Rows per second of full batches.
    pub(crate) throughput: f64,
}

/// Why a model cannot run on a kind of device at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unfit {
    NoProfile,
    /// The fastest candidate, and what it takes.
    TooSlow {
        batch_size: u32,
        latency: Duration,
    },
}

/// The candidates of every model on every device, worked out once per kind.
pub(crate) struct Candidates<'a> {
    problem: &'a Problem,
    kinds: Vec<&'a DeviceKind>,
    /// Which kind a device has.
    kind_of: Vec<usize>,
    /// By model, then kind: by batch size, not empty.
    table: Vec<Vec<Result<Vec<Candidate>, Unfit>>>,
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

    /// By batch size; empty if the model cannot run there.
    pub(crate) fn of(&self, model: ModelIndex, device: DeviceIndex) -> &[Candidate] {
        self.table[model.0][self.kind_of[device.0]]
            .as_deref()
            .unwrap_or_default()
    }

    /// The number of a device's kind.
    pub(crate) fn kind(&self, device: DeviceIndex) -> usize {
        self.kind_of[device.0]
    }

    /// Of a full batch on the fastest kind, in rows per second; zero if the model can run on none.
    pub(crate) fn best_throughput(&self, model: ModelIndex) -> f64 {
        let all = self.table[model.0].iter().flatten().flatten();
        all.map(|candidate| candidate.throughput)
            .fold(0.0, f64::max)
    }

    /// Why there is no device for a model whatever else runs; `None` if there could be one.
    pub(crate) fn unfit(&self, model: ModelIndex) -> Option<String> {
        let of_kinds = &self.table[model.0];
        if self.kinds.is_empty() {
            return Some("there is no device".to_owned());
        }
        if of_kinds.iter().any(Result::is_ok) {
            return None;
        }
        let slow = of_kinds
            .iter()
            .zip(&self.kinds)
            .filter_map(|(unfit, kind)| match unfit {
                Err(Unfit::TooSlow {
                    batch_size,
                    latency,
                }) => Some((latency, batch_size, kind)),
                _ => None,
            });
        let slo = self.problem.models[model.0].slo;
        let too_slow = slow.min().map(|(latency, batch_size, kind)| {
            format!("no batch size meets the SLO of {slo:?}: a batch of {batch_size} takes {latency:?} on {kind}")
        });
        Some(too_slow.unwrap_or_else(|| {
            let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.as_str()).collect();
            format!("no profile on {}", kinds.join(", "))
        }))
    }
}

/// The profiled batch sizes that the model takes and that are within its SLO. A model that takes only smaller batches than any
/// profiled one is judged at its largest, by the profile's continuation.
fn candidates(
    problem: &Problem,
    model: ModelIndex,
    kind: &DeviceKind,
) -> Result<Vec<Candidate>, Unfit> {
    let model = &problem.models[model.0];
    let profile = problem
        .profiles
        .get(&model.id, kind)
        .ok_or(Unfit::NoProfile)?;
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
        Some(fastest) if feasible.is_empty() => Err(Unfit::TooSlow {
            batch_size: fastest.batch_size,
            latency: fastest.latency,
        }),
        _ => Ok(feasible),
    }
}
