//! What is learned of how replicas slow each other beyond the known physics, from what is observed of shared devices.

mod activity;
mod belief;
mod gaussian;

use std::collections::BTreeMap;

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, Profile, ProfileTable, ReplicaObservation,
};

use self::{
    activity::{Companion, Company},
    belief::{Belief, Effect, ModelNumber, Point, Reading},
};
use crate::Active;

/// How many kinds of devices are remembered; of more, those last observed.
const KINDS: usize = 32;
/// How many replicas of a device are learned from at a time: the busiest. Of a device with more, the rest says little.
const SUBJECTS: usize = 16;
/// Relative error of an observation that no number of batches averages out: co-activity is told from busy fractions, as if
/// replicas were active independently of each other.
const MODEL_ERROR: f64 = 0.02;
/// Relative standard deviation of the slowdown of one batch.
const BATCH_ERROR: f64 = 0.3;
/// The part of its prior's variance that an effect gets back with each observation.
const FORGETTING: f64 = 0.02;
/// Slowdowns outside this range are no slowdowns: something else happened, or the profile is of something else.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.1..=100.0;
/// No profile is more than so much too slow.
const LEAST_ALONE: f64 = 0.1;

/// A replica of a device with what it does there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant<'a> {
    /// Which model.
    pub model: &'a ModelId,
    /// What its usual batch takes of the device.
    pub active: Active,
    /// About the rows of a batch.
    pub rows: u32,
    /// The fraction of time in which it is computing, from 0 to 1.
    pub busy: f64,
}

impl<'a> Tenant<'a> {
    /// A replica by its model's profile on the device. Without one, as without a utilisation in it, it may use the whole device.
    pub fn new(
        model: &'a ModelId,
        profile: Option<&Profile>,
        rows: u32,
        compute_share: Option<ComputeShare>,
        busy: f64,
    ) -> Self {
        Self {
            model,
            active: Active::measured(profile, rows, compute_share),
            rows,
            busy,
        }
    }

    fn point(&self) -> Point {
        let share = self.active.compute_share;
        Point {
            log_rows: f64::from(self.rows.max(1)).log2().round() as u32,
            share_steps: share.map(|share| (share.get() / 5.0).round() as u32),
        }
    }
}

/// How many times as long a batch takes as alone on the device with the same share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Expected; at least 1.
    pub mean: f64,
    /// Standard deviation of the expectation, from what is not known. How single batches scatter around it is not in here.
    pub std: f64,
}

impl Slowdown {
    /// With `k` standard deviations of headroom.
    pub fn cautious(self, k: f64) -> f64 {
        self.mean + k * self.std
    }
}

/// How much longer the batches of a model take: relative to alone, per 100 % of a neighbour's SM utilisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// Expected; 0 where nothing was observed. Below 0 where the physics is too dark.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
}

/// What was learned of co-located replicas.
///
/// [`crate::Interference`] knows what multiprocessors and shares cost. Caches, memory bandwidth, power and whatever else replicas
/// contend for are in no profile; this learns them. While a replica of model `i` and one of model `j` are active at the same
/// moment, `i` takes `1 + θᵢⱼ · uⱼ / 100` times as long as the physics says, with `uⱼ` the neighbour's effective SM utilisation in
/// percent, and several neighbours add up. That is iGniter's form, `1 + α · Σ c`, on the utilisation of the multiprocessors, which
/// every profile has, instead of the cache's; and `α`, there a constant of model `i` alone, is a sum of effects, per kind of
/// device:
///
/// ```text
/// θᵢⱼ = everyone + sensitivityᵢ + pressureⱼ + pairᵢⱼ
/// ```
///
/// so that a pair which was never seen together is predicted from what either did in other company. Further effects, of model `i`
/// and of how it runs (about how many rows, about which share), are what it takes longer than its profile says even undisturbed;
/// without them a stale profile would pass for interference.
///
/// The effects are jointly Gaussian and start at zero, which is the physics: nothing observed, nothing extra. Their spread is how
/// much the unknown may matter; a plan that leaves room for [`Slowdown::cautious`] has headroom where little is known, and less of
/// it the more was seen.
///
/// Deterministic, and bounded: per kind of device at most 256 effects, the least recently observed of which are forgotten, those
/// of pairs and of ways to run first. What was not observed lately counts less: a driver, a model or a clock may have changed.
///
/// Source of the form: Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the
/// Cloud", TPDS 2023, section 3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlowdownModel {
    kinds: BTreeMap<DeviceKind, Belief>,
    /// Observations so far.
    clock: u64,
    /// Whether old observations count as much as new ones.
    lasting: bool,
}

impl SlowdownModel {
    /// One for measurements that do not age: nothing is forgotten.
    pub fn lasting() -> Self {
        Self {
            lasting: true,
            ..Self::default()
        }
    }

    /// What these observations teach, the oldest first.
    pub fn learned<'a>(
        observations: impl IntoIterator<Item = &'a DeviceObservation>,
        profiles: &ProfileTable,
    ) -> Self {
        let mut model = Self::default();
        for observation in observations {
            model.observe(observation, profiles);
        }
        model
    }

    /// Learns from one device over one period. Profiles say what its batches take of the device. One replica by itself teaches how
    /// far its profile is off. What cannot be is ignored: the whole observation where a busy fraction is none, for it tells who was
    /// active beside whom; else a replica without batches, or with a slowdown or a number of rows that is none.
    pub fn observe(&mut self, observation: &DeviceObservation, profiles: &ProfileTable) {
        let replicas = &observation.replicas;
        if !replicas.iter().all(|r| (0.0..=1.0).contains(&r.busy)) {
            return;
        }
        let measured = replicas.iter().map(|replica| {
            // Who says nothing true of its rows was not measured, but was there.
            let plausible = replica.mean_rows >= 1.0 && replica.mean_rows.is_finite();
            Measured {
                batches: if plausible { replica.batches } else { 0 },
                slowdown: replica.slowdown,
            }
        });
        let tenants = tenants(observation, profiles);
        let measured: Vec<_> = tenants.into_iter().zip(measured).collect();
        self.measure(&observation.kind, &measured);
    }

    /// Learns from replicas that shared a device: what each was beside the others, and what was measured of it.
    pub fn measure(&mut self, kind: &DeviceKind, device: &[(Tenant<'_>, Measured)]) {
        let mut device: Vec<&(Tenant<'_>, Measured)> = device.iter().collect();
        // In an order of its own, so that the given one cannot matter.
        device.sort_by(|(a, x), (b, y)| {
            let order = b.busy.total_cmp(&a.busy).then_with(|| a.model.cmp(b.model));
            let order = order.then_with(|| a.active.effective().total_cmp(&b.active.effective()));
            order.then_with(|| x.slowdown.total_cmp(&y.slowdown))
        });
        let tenants: Vec<Tenant<'_>> = device.iter().map(|(tenant, _)| *tenant).collect();
        let subjects: Vec<(usize, Measured)> = device
            .iter()
            .map(|(_, measured)| *measured)
            .enumerate()
            .filter(|(_, measured)| measured.is_plausible())
            .take(SUBJECTS)
            .collect();
        if subjects.is_empty() {
            return;
        }
        self.clock += 1;
        let belief = self.kinds.entry(kind.clone()).or_default();
        belief.know(tenants.iter().map(|tenant| tenant.model));
        let forgetting = if self.lasting { 0.0 } else { FORGETTING };
        belief.learn(self.clock, forgetting, |belief| {
            let reading = |(subject, measured): &(usize, Measured)| {
                let mut neighbours = tenants.clone();
                let subject = neighbours.remove(*subject);
                measured.reading(&Outlook::of(belief, &subject, &neighbours))
            };
            subjects.iter().map(reading).collect()
        });
        self.forget_kinds();
    }

    /// How long a replica's batches take beside its neighbours, relative to alone on the device with its share.
    pub fn expected(
        &self,
        kind: &DeviceKind,
        subject: &Tenant<'_>,
        neighbours: &[Tenant<'_>],
    ) -> Slowdown {
        let unknown = Belief::default();
        let belief = self.kinds.get(kind).unwrap_or(&unknown);
        let outlook = Outlook::of(belief, subject, neighbours);
        Slowdown {
            mean: outlook.slowdown.max(1.0),
            std: belief.variance(&outlook.weights).sqrt(),
        }
    }

    /// How long the batches of each replica of an observed device were to be expected to take, in their order.
    pub fn expected_of(
        &self,
        observation: &DeviceObservation,
        profiles: &ProfileTable,
    ) -> Vec<Slowdown> {
        let tenants = tenants(observation, profiles);
        let expected = |subject| {
            let mut neighbours = tenants.clone();
            let subject = neighbours.remove(subject);
            self.expected(&observation.kind, &subject, &neighbours)
        };
        (0..tenants.len()).map(expected).collect()
    }

    /// How much longer a model's batches take while one of another model is active beside them, beyond the physics: for planners
    /// that know themselves when that is.
    pub fn sensitivity(
        &self,
        kind: &DeviceKind,
        subject: &ModelId,
        neighbour: &ModelId,
    ) -> Sensitivity {
        let unknown = Belief::default();
        let belief = self.kinds.get(kind).unwrap_or(&unknown);
        let numbers = belief.numbers([subject, neighbour]);
        let effects = effects_on(numbers[0], numbers[1]);
        Sensitivity {
            mean: effects.iter().map(|effect| belief.mean(*effect)).sum(),
            std: belief.variance(&effects.map(|effect| (effect, 1.0))).sqrt(),
        }
    }

    fn forget_kinds(&mut self) {
        while self.kinds.len() > KINDS {
            let oldest = self.kinds.iter().min_by_key(|(_, belief)| belief.updated());
            let Some(kind) = oldest.map(|(kind, _)| kind.clone()) else {
                return;
            };
            self.kinds.remove(&kind);
        }
    }
}

/// What was measured of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Over how many batches.
    pub batches: u64,
    /// How many times as long they took as alone on the device with the same share.
    pub slowdown: f64,
}

impl Measured {
    fn is_plausible(self) -> bool {
        self.batches > 0 && PLAUSIBLE.contains(&self.slowdown)
    }

    fn reading(self, outlook: &Outlook) -> Reading {
        let variance = MODEL_ERROR.powi(2) + BATCH_ERROR.powi(2) / self.batches as f64;
        Reading {
            weights: outlook.weights.clone(),
            seen: self.slowdown,
            value: outlook.slowdown,
            noise: outlook.slowdown * variance.sqrt(),
        }
    }
}

/// How a replica fares beside its neighbours, by what is believed.
struct Outlook {
    slowdown: f64,
    /// Its derivative by the effects.
    weights: Vec<(Effect, f64)>,
}

impl Outlook {
    fn of(belief: &Belief, subject: &Tenant<'_>, neighbours: &[Tenant<'_>]) -> Self {
        let models =
            std::iter::once(subject.model).chain(neighbours.iter().map(|other| other.model));
        let numbers = belief.numbers(models);
        let (own, others) = (numbers[0], &numbers[1..]);
        let companions: Vec<Companion> = neighbours
            .iter()
            .zip(others)
            .map(|(neighbour, number)| Companion {
                utilization: neighbour.active.effective(),
                busy: neighbour.busy.clamp(0.0, 1.0),
                extra: effects_on(own, *number)
                    .iter()
                    .map(|effect| belief.mean(*effect))
                    .sum(),
            })
            .collect();
        let company = Company::of(subject.active.effective(), &companions);
        let own_effects = [Effect::Alone(own), Effect::Point(own, subject.point())];
        let off: f64 = own_effects.iter().map(|effect| belief.mean(*effect)).sum();
        let alone = (1.0 + off).max(LEAST_ALONE);
        let mut weights = BTreeMap::from(own_effects.map(|effect| (effect, company.slowdown)));
        for (slope, number) in company.by_extra.iter().zip(others) {
            for effect in effects_on(own, *number) {
                *weights.entry(effect).or_default() += slope * alone;
            }
        }
        Self {
            slowdown: company.slowdown * alone,
            weights: weights.into_iter().collect(),
        }
    }
}

/// What a neighbour's company does to a model.
fn effects_on(subject: ModelNumber, neighbour: ModelNumber) -> [Effect; 4] {
    [
        Effect::Everyone,
        Effect::Sensitivity(subject),
        Effect::Pressure(neighbour),
        Effect::Pair(subject, neighbour),
    ]
}

fn tenants<'a>(observation: &'a DeviceObservation, profiles: &ProfileTable) -> Vec<Tenant<'a>> {
    let tenant = |replica: &'a ReplicaObservation| {
        let profile = profiles.get(&replica.model, &observation.kind);
        let (share, busy) = (replica.compute_share, replica.busy);
        Tenant::new(&replica.model, profile, rows(replica), share, busy)
    };
    observation.replicas.iter().map(tenant).collect()
}

/// About the rows of a replica's batches; a profile is flat outside of what it knows.
fn rows(replica: &ReplicaObservation) -> u32 {
    replica.mean_rows.round().clamp(1.0, 1e6) as u32
}

#[cfg(test)]
mod tests;
