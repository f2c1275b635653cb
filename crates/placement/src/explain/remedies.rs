//! What would serve a model: one kind of change at a time, as small as doubling and bisection find it.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{
    Change, DeviceKind, ModelSpec, Plan, Problem, Profile, Remedy, RequestsPerSecond,
};

use super::asker::{Asker, device};

/// So many further devices of a kind are tried.
const MOST_DEVICES: u64 = 16;
/// An SLO is loosened by at most this factor.
const LOOSEST: u64 = 64;

/// What was found, by kind of change: devices, a looser SLO, smaller batches, a lower rate.
pub(super) fn remedies(
    problem: &Problem,
    plan: &Plan,
    model: usize,
    asker: &mut Asker<'_, '_>,
) -> Vec<Remedy> {
    let mut search = Search {
        problem,
        model,
        asker,
    };
    let mut found = search.devices();
    if search.profiles().next().is_some() {
        found.extend(search.slo());
        found.extend(search.batch_size(plan));
        found.extend(search.rate());
    }
    found
}

struct Search<'s, 'a, 'b> {
    problem: &'s Problem,
    model: usize,
    asker: &'s mut Asker<'a, 'b>,
}

impl<'s> Search<'s, '_, '_> {
    /// Of the kinds of devices that there are; where none of these helps, of others for which there is a profile.
    fn devices(&mut self) -> Vec<Remedy> {
        let problem = self.problem;
        let model = &problem.models[self.model].id;
        let profiled = problem.profiles.iter();
        let kinds = profiled
            .filter(|(id, kind, _)| *id == model && device(problem, kind).is_some())
            .map(|(_, kind, _)| kind);
        let here: BTreeSet<&DeviceKind> =
            problem.devices.iter().map(|device| &device.kind).collect();
        let (known, others): (Vec<_>, Vec<_>) = kinds.partition(|kind| here.contains(kind));
        for kinds in [known, others] {
            let found: Vec<Remedy> = kinds
                .into_iter()
                .filter_map(|kind| self.devices_of(kind))
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    fn devices_of(&mut self, kind: &DeviceKind) -> Option<Remedy> {
        let more = |count| Change::AddDevices {
            kind: kind.clone(),
            count: u32::try_from(count).expect("a small number"),
        };
        self.least(0, 1, MOST_DEVICES, more)
    }

    /// In steps of the last but one or two digits of the SLO.
    fn slo(&mut self) -> Option<Remedy> {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let slo = micros(self.problem.models[self.model].slo);
        let unit = 10_u64.pow((slo / 100).max(1).ilog10());
        let units = slo / unit;
        let most = (micros(ModelSpec::MAX_SLO) / unit).min(units.saturating_mul(LOOSEST));
        self.least(units, (units / 8).max(1), most, |units| Change::Slo {
            slo: Duration::from_micros(units * unit),
        })
    }

    /// The largest of the profiled sizes below the planned ones that helps.
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
            self.asker.try_change(self.problem, self.model, change)
        })
    }

    /// In hundredths of the rate.
    fn rate(&mut self) -> Option<Remedy> {
        let rate = self.problem.models[self.model].rate.get();
        if rate <= 0.0 {
            return None;
        }
        self.least(0, 10, 99, |percent| Change::Rate {
            rate: RequestsPerSecond::new(rate * (100 - percent) as f64 / 100.0)
                .expect("a part of a rate"),
        })
    }

    /// The least change that suffices, as far as doubling steps from a size that does not, and bisection down to 2 %, find it.
    fn least(
        &mut self,
        mut short: u64,
        mut step: u64,
        most: u64,
        change: impl Fn(u64) -> Change,
    ) -> Option<Remedy> {
        let mut ask = |size| {
            self.asker
                .try_change(self.problem, self.model, change(size))
        };
        let (mut enough, mut remedy) = loop {
            if short >= most {
                return None;
            }
            let size = short.saturating_add(step).min(most);
            match ask(size) {
                Some(remedy) => break (size, remedy),
                None => short = size,
            }
            step = step.saturating_mul(2);
        };
        while enough - short > (enough / 50).max(1) {
            let middle = short.midpoint(enough);
            match ask(middle) {
                Some(smaller) => (enough, remedy) = (middle, smaller),
                None => short = middle,
            }
        }
        Some(remedy)
    }

    /// The model's on the kinds of devices that there are.
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
