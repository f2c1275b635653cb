//! Changes that would serve a model: one kind of change at a time, as small as a search finds it. The number of devices and the priority are the smallest that suffice.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{
    Change, DeviceKind, ModelSpec, Plan, Priority, Problem, Profile, Remedy, RequestsPerSecond,
};

use super::replanner::{Replanner, further_device};

/// The most further devices of a kind that are tried.
const MAX_DEVICES: u32 = 16;
/// The parts of a change at whose ends smaller ones are tried.
const PARTS: u64 = 4;
/// The largest factor that an SLO is multiplied by.
const MAX_SLO_FACTOR: u64 = 64;

/// The kinds of changes, in the order in which they are told.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangeKind {
    Devices,
    Slo,
    BatchSize,
    Rate,
    Priority,
}

impl ChangeKind {
    pub(super) const ALL: [Self; 5] = [
        Self::Devices,
        Self::Slo,
        Self::BatchSize,
        Self::Rate,
        Self::Priority,
    ];

    /// Returns true if such a change may serve a model whose latency floor is above its SLO.
    pub(super) fn may_help_below_floor(self) -> bool {
        matches!(self, Self::Devices | Self::Slo)
    }
}

/// Finds remedies of a kind for a model. `floor` is the least latency of a request on any device, if it is above the SLO: then only devices of other kinds are
/// tried.
pub(super) fn find_remedies(
    kind: ChangeKind,
    problem: &Problem,
    plan: &Plan,
    model: usize,
    floor: Option<Duration>,
    replanner: &mut Replanner<'_, '_>,
) -> Vec<Remedy> {
    let mut search = RemedySearch {
        problem,
        model,
        floor,
        replanner,
    };
    let is_profiled = search.profiles().next().is_some();
    let found = match kind {
        ChangeKind::Devices => return search.devices(),
        _ if !is_profiled => None,
        ChangeKind::Slo => search.slo(),
        ChangeKind::BatchSize => search.batch_size(plan),
        ChangeKind::Rate => search.rate(),
        ChangeKind::Priority => search.priority(),
    };
    found.into_iter().collect()
}

struct RemedySearch<'s, 'a, 'b> {
    problem: &'s Problem,
    model: usize,
    floor: Option<Duration>,
    replanner: &'s mut Replanner<'a, 'b>,
}

impl<'s> RemedySearch<'s, '_, '_> {
    /// Finds further devices of the kinds of the problem; if none of these suffices, of other kinds with a profile.
    fn devices(&mut self) -> Vec<Remedy> {
        let problem = self.problem;
        let model = &problem.models[self.model];
        let profiled = problem.profiles.iter();
        let profiled = profiled.filter(|(id, kind, profile)| {
            let one_row = profile.latency(1).mul_f64(model.latency_scale);
            *id == &model.id && one_row <= model.slo && further_device(problem, kind).is_some()
        });
        let kinds = profiled.map(|(_, kind, _)| kind);
        let present: BTreeSet<&DeviceKind> =
            problem.devices.iter().map(|device| &device.kind).collect();
        let (known, others): (Vec<_>, Vec<_>) = kinds.partition(|kind| present.contains(kind));
        let known = if self.floor.is_some() {
            Vec::new()
        } else {
            known
        };
        for kinds in [known, others] {
            let found: Vec<Remedy> = kinds
                .into_iter()
                .filter_map(|kind| self.devices_of_kind(kind))
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// Finds the fewest devices of a kind: a number that suffices by doubling, and then the first of all smaller ones, since a policy may serve less on
    /// more devices.
    fn devices_of_kind(&mut self, kind: &DeviceKind) -> Option<Remedy> {
        let mut with_more = |count| {
            let kind = kind.clone();
            let change = Change::AddDevices { kind, count };
            self.replanner.try_change(self.problem, self.model, change)
        };
        let doubled = (0..=MAX_DEVICES.ilog2()).map(|power| 1 << power);
        let (enough, remedy) = doubled
            .into_iter()
            .find_map(|count| Some((count, with_more(count)?)))?;
        let mut smaller = (1..enough).filter(|count: &u32| !count.is_power_of_two());
        Some(smaller.find_map(with_more).unwrap_or(remedy))
    }

    /// Finds a longer SLO, in units of its third digit.
    fn slo(&mut self) -> Option<Remedy> {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let slo = micros(self.problem.models[self.model].slo);
        let unit = 10_u64.pow((slo / 100).max(1).ilog10());
        let units = slo / unit;
        let most = (micros(ModelSpec::MAX_SLO) / unit).min(units.saturating_mul(MAX_SLO_FACTOR));
        let least = self.floor.map_or(0, |floor| micros(floor) / unit);
        self.least_change(units, (units / 8).max(1), least, most, |units| {
            Change::Slo {
                slo: Duration::from_micros(units * unit),
            }
        })
    }

    /// Finds the largest profiled batch size below the planned ones that suffices as a limit.
    fn batch_size(&mut self, plan: &Plan) -> Option<Remedy> {
        let replicas = plan.replicas.iter();
        let planned = replicas
            .filter(|replica| replica.model.0 == self.model)
            .map(|replica| replica.batch_size)
            .max()?;
        let sizes: BTreeSet<u32> = self
            .profiles()
            .flat_map(|profile| profile.whole().iter().map(|row| row.batch_size))
            .filter(|size| *size < planned)
            .collect();
        sizes.into_iter().rev().find_map(|max_batch_size| {
            let change = Change::MaxBatchSize { max_batch_size };
            self.replanner.try_change(self.problem, self.model, change)
        })
    }

    /// Finds a lower rate, in hundredths of the rate.
    fn rate(&mut self) -> Option<Remedy> {
        let rate = self.problem.models[self.model].rate.get();
        if rate <= 0.0 {
            return None;
        }
        self.least_change(0, 10, 0, 99, |percent| Change::Rate {
            rate: RequestsPerSecond::new(rate * (100 - percent) as f64 / 100.0)
                .expect("a part of a rate"),
        })
    }

    /// Finds the lowest of the higher priorities that suffices. Without needs, priorities change no plan.
    fn priority(&mut self) -> Option<Remedy> {
        let models = &self.problem.models;
        if models.iter().all(|model| model.need.is_none()) {
            return None;
        }
        let own = models[self.model].priority;
        let equal_or_above = |priority: Priority| {
            let above = Priority::new(u32::from(priority) + 1).ok();
            [Some(priority), above]
        };
        let others = models.iter().map(|model| model.priority);
        let tried = others.flat_map(equal_or_above).flatten();
        let higher: BTreeSet<Priority> = tried.filter(|priority| *priority > own).collect();
        higher.into_iter().find_map(|priority| {
            let change = Change::Priority { priority };
            self.replanner.try_change(self.problem, self.model, change)
        })
    }

    /// Finds the least change that suffices: by doubling the step from the size `none`, which does not, and then by bisection down to 2 %. A policy may serve
    /// less after a larger change. So some smaller ones are tried, too, and the bisection goes on from one that suffices. Sizes below `least` are known
    /// not to suffice.
    fn least_change(
        &mut self,
        none: u64,
        mut step: u64,
        least: u64,
        most: u64,
        change: impl Fn(u64) -> Change,
    ) -> Option<Remedy> {
        let mut try_size = |size| {
            let may_suffice = size >= least;
            may_suffice.then(|| {
                self.replanner
                    .try_change(self.problem, self.model, change(size))
            })?
        };
        let mut too_small = none;
        let (mut enough, mut remedy) = loop {
            if too_small >= most {
                return None;
            }
            let size = too_small.saturating_add(step).min(most);
            match try_size(size) {
                Some(remedy) => break (size, remedy),
                None => too_small = size,
            }
            step = step.saturating_mul(2);
        };
        loop {
            while enough - too_small > (enough / 50).max(1) {
                let middle = too_small.midpoint(enough);
                match try_size(middle) {
                    Some(smaller) => (enough, remedy) = (middle, smaller),
                    None => too_small = middle,
                }
            }
            let parts = (1..PARTS).map(|part| none + (too_small - none) * part / PARTS);
            let mut sizes = parts.filter(|size| *size > none);
            let Some((size, smaller)) = sizes.find_map(|size| Some((size, try_size(size)?))) else {
                return Some(remedy);
            };
            (too_small, enough, remedy) = (none, size, smaller);
        }
    }

    /// Returns the profiles of the model on the kinds of the problem's devices.
    fn profiles(&self) -> impl Iterator<Item = &'s Profile> + use<'s> {
        let problem = self.problem;
        let id = &problem.models[self.model].id;
        let kinds: BTreeSet<&DeviceKind> =
            problem.devices.iter().map(|device| &device.kind).collect();
        kinds
            .into_iter()
            .filter_map(move |kind| problem.profiles.get(id, kind))
    }
}
