//! What is the same for all placements of a problem.

use std::collections::BTreeMap;

use packhorse_cluster::{ComputeShare, DemandedModel, DeviceKind, Discipline, Problem, Profile};
use packhorse_contention::{SlowdownModel, Tenant};

use super::service::Service;

/// How many standard deviations of what is not known of a slowdown are kept free.
const CAUTION: f64 = 1.0;

/// A problem with its profiles and observations worked out.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) problem: &'a Problem,
    /// Which kind a device has, by number.
    kind_of: Vec<usize>,
    /// By model, then kind; none where the model cannot run.
    services: Vec<Vec<Option<Service>>>,
    /// By kind, then subject, then neighbour: how much longer the subject takes per 100 % of the neighbour's utilisation, beyond
    /// the physics. Empty where nothing was observed.
    sensitivities: Vec<Vec<f64>>,
    /// By model.
    pub(crate) demands: Vec<Demand>,
    /// How many equal replicas run now: by device, model, batch size and share in bits.
    running: BTreeMap<(usize, usize, u32, u64), usize>,
}

/// What is asked for one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Requests per second that really come.
    pub(crate) rate: f64,
    /// Seconds.
    pub(crate) slo: f64,
    /// Seconds on the way of a batch of no bytes, there and back.
    pub(crate) way: f64,
    /// Seconds on the way per row.
    pub(crate) way_per_row: f64,
    /// Variance over mean of the number of arrivals in a long time: 1 is Poisson.
    pub(crate) dispersion: f64,
    /// The discipline `fixed-wait`: how long it holds an open batch, in seconds.
    pub(crate) fixed_wait: Option<f64>,
}

impl Demand {
    fn new(model: &DemandedModel, problem: &Problem) -> Self {
        let (conditions, network) = (&problem.conditions, &problem.network);
        let fixed_wait = problem.discipline == Discipline::FixedWait;
        let nominal = model.rate.get();
        // A client works after each gap: that makes gaps longer, and more regular.
        let slower = 1.0 / (1.0 + nominal * conditions.client_overhead.as_secs_f64());
        let way = conditions.router_overhead + network.base + conditions.return_time;
        Self {
            rate: nominal * slower,
            slo: model.slo.as_secs_f64(),
            way: way.as_secs_f64(),
            way_per_row: model.payload.as_u64() as f64 / network.bytes_per_second,
            dispersion: (conditions.burstiness * slower).powi(2),
            fixed_wait: fixed_wait.then_some(conditions.max_batch_wait.as_secs_f64()),
        }
    }
}

impl Demand {
    /// Mean requests of a burst; 1 if they come one by one. Bursts of a geometric size with this mean have the dispersion.
    pub(crate) fn burst(&self) -> f64 {
        0.5 * (self.dispersion.max(1.0) + 1.0)
    }
}

fn bits(share: Option<ComputeShare>) -> u64 {
    share.map_or(0, |share| share.get().to_bits())
}

impl<'a> World<'a> {
    pub(crate) fn new(problem: &'a Problem) -> Self {
        let mut numbers = BTreeMap::new();
        let mut kinds: Vec<&DeviceKind> = Vec::new();
        let mut kind_of = Vec::with_capacity(problem.devices.len());
        for device in &problem.devices {
            let number = *numbers.entry(&device.kind).or_insert_with(|| {
                kinds.push(&device.kind);
                kinds.len() - 1
            });
            kind_of.push(number);
        }
        let learned = SlowdownModel::learned(&problem.observations, &problem.profiles);
        let mut sensitivities = Vec::new();
        if !problem.observations.is_empty() {
            sensitivities.extend(kinds.iter().map(|kind| pairs(&learned, kind, problem)));
        }
        let of_kinds = |model| {
            let service = |kind: &&DeviceKind| service(problem, &learned, model, kind);
            kinds.iter().map(service).collect()
        };
        let demand = |model| Demand::new(model, problem);
        let mut running = BTreeMap::new();
        for replica in &problem.current {
            let share = bits(replica.compute_share);
            let key = (replica.device.0, replica.model.0, replica.batch_size, share);
            *running.entry(key).or_default() += 1;
        }
        Self {
            services: problem.models.iter().map(of_kinds).collect(),
            demands: problem.models.iter().map(demand).collect(),
            sensitivities,
            running,
            kind_of,
            problem,
        }
    }

    /// What a model's batches take on a device; none if it cannot run there.
    pub(crate) fn service(&self, model: usize, device: usize) -> Option<&Service> {
        self.services[model][self.kind_of[device]].as_ref()
    }

    /// How much longer `subject` takes per 100 % of utilisation of `neighbour`, beyond the physics; at least 0.
    pub(crate) fn sensitivity(&self, device: usize, subject: usize, neighbour: usize) -> f64 {
        let of_kind = self.sensitivities.get(self.kind_of[device]);
        of_kind.map_or(0.0, |pairs| pairs[subject * self.demands.len() + neighbour])
    }

    /// How many replicas like this one run now.
    pub(crate) fn running(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        share: Option<ComputeShare>,
    ) -> usize {
        let key = (device, model, batch, bits(share));
        self.running.get(&key).copied().unwrap_or_default()
    }

    /// Whether anything runs now.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }
}

fn pairs(learned: &SlowdownModel, kind: &DeviceKind, problem: &Problem) -> Vec<f64> {
    let ids = || problem.models.iter().map(|model| &model.id);
    let pair = |subject, neighbour| {
        let found = learned.sensitivity(kind, subject, neighbour);
        (found.mean + CAUTION * found.std).max(0.0)
    };
    ids()
        .flat_map(|subject| ids().map(move |neighbour| pair(subject, neighbour)))
        .collect()
}

/// The model's batches on a kind of device, as long as they were seen to take undisturbed.
fn service(
    problem: &Problem,
    learned: &SlowdownModel,
    model: &DemandedModel,
    kind: &DeviceKind,
) -> Option<Service> {
    let profile = problem.profiles.get(&model.id, kind)?;
    let largest = largest(profile, model)?;
    let mut scale = model.latency_scale;
    if !problem.observations.is_empty() {
        let tenant = Tenant::new(&model.id, Some(profile), largest, None, 1.0);
        scale *= learned.expected(kind, &tenant, &[]).mean;
    }
    Some(Service::new(
        profile,
        largest,
        scale,
        problem.conditions.mps_exponent,
    ))
}

/// The largest batch within the SLO, up to the largest that is profiled or, if the model takes only smaller ones, up to that.
fn largest(profile: &Profile, model: &DemandedModel) -> Option<u32> {
    let sizes = profile.whole();
    let bound = sizes
        .last()?
        .batch_size
        .max(1)
        .min(model.max_batch_size.max(1));
    (1..=bound)
        .rev()
        .find(|rows| profile.latency(*rows) <= model.slo)
}
