//! The decision process that an agent learns: clusters with models whose rates change.
//!
//! An episode has a problem of its own: one to four V100 and one to eight models of the thesis' and of Clockwork's profiles, with SLOs of 8 to 40 times a
//! request's time, and rates that together need 0.2 to 1.6 of the devices. In each step, of one second, the agent places all models, BDA chooses the
//! batch sizes, and the rates change by up to 20 %. The requests that were not answered in time, as far as their SLO reaches, are the backlog of the next step.
//!
//! The reward is that of InSS' equation 3: for each model the requests answered per second over those of a whole device without batches (`H`), less
//! `ω` times the part that was late.
//!
//! Source: InSS, section 5.2 and algorithm 2.
//!
//! Deviations:
//! - The paper's environment is one cluster with six models, in which requests arrive evenly; it leaves open if the part that is late is measured or predicted by the
//!   latency model. Here it is that of our estimate ([`packhorse_placement::estimate`]) with the discipline `deadline`, which has Poisson
//!   arrivals, queues and interference, and which the simulator checks now and then ([`crate::evaluation`]).
//! - An episode has [`STEPS`] steps instead of 200, so that the agent sees more problems.
//! - Rewards are divided by `ω`, so that a model that is late altogether costs 1; the paper normalises as well, and does not say how. `ω` is the paper's 100; its
//!   code has 50.
//! - The memory that the state shows is that of batches of one: BDA decides later.

use std::time::Duration;

use packhorse_cluster::{
    ByteCount, DemandedModel, Device, DeviceIndex, MinReplicas, ModelId, ModelIndex, Priority,
    Problem, ProfileTable, RequestsPerSecond,
};
use packhorse_placement::{
    PlanningOptions, estimate,
    inss::{DEVICES, LEVELS, MODELS, ModelTraits, OPTIONS, Placed, Slot, observation, plan},
};

use crate::{heads::Heads, random::Random};

/// The steps of an episode.
pub(crate) const STEPS: usize = 20;
/// The penalty factor `ω`.
const PENALTY: f64 = 100.0;
/// The duration of a step, in seconds.
const STEP_S: f64 = 1.0;
/// The loads of all models together, as parts of the devices.
const LOADS: (f64, f64) = (0.2, 1.6);
/// The SLO of a model over the time of one request.
const SLOS: (f64, f64) = (8.0, 40.0);
/// The largest change of a rate in a step.
const RATE_CHANGE: f64 = 0.2;
/// The memory of a device, in MiB.
const MEMORY_MIB: u64 = 16_384;
/// The kind of the devices.
const KIND: &str = "V100-SXM2-16GB";

/// The models that problems are drawn from.
pub(crate) struct Pool {
    profiles: ProfileTable,
    models: Vec<ModelId>,
}

impl Pool {
    /// Creates the pool of the committed profiles.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let mut profiles =
            ProfileTable::from_csv(include_str!("../../../profiles/v100-thesis.csv"))?;
        let zoo = ProfileTable::from_csv(include_str!("../../../scenarios/zoo/zoo.csv"))?;
        let kind: packhorse_cluster::DeviceKind = KIND.parse()?;
        for (model, _, profile) in zoo.iter() {
            if profiles.get(model, &kind).is_none() {
                profiles.insert(model.clone(), kind.clone(), profile.clone());
            }
        }
        let models = profiles.iter().map(|(model, _, _)| model.clone());
        Ok(Self {
            models: models.collect(),
            profiles,
        })
    }

    /// Draws a problem. Its models are ordered by their load, the largest first.
    pub(crate) fn draw(&self, random: &mut Random) -> anyhow::Result<Problem> {
        let devices = 1 + random.below(DEVICES);
        let count = 1 + random.below(MODELS);
        let mut problem = Problem {
            devices: vec![
                Device {
                    kind: KIND.parse()?,
                    memory: ByteCount::from_mib(MEMORY_MIB).unwrap_or_default(),
                    multiprocessors: None,
                    node: "node".parse()?,
                    cost_per_hour: None,
                    pool: None,
                };
                devices
            ],
            profiles: self.profiles.clone(),
            ..Problem::default()
        };
        while problem.models.len() < count {
            let id = &self.models[random.below(self.models.len())];
            if problem.models.iter().any(|model| model.id == *id) {
                continue;
            }
            let kind = &problem.devices[0].kind;
            let one = self
                .profiles
                .get(id, kind)
                .map(|profile| profile.latency(1));
            let (least, most) = SLOS;
            let times = random.between(least.ln(), most.ln()).exp();
            problem.models.push(DemandedModel {
                id: id.clone(),
                rate: RequestsPerSecond::new(1.0)?,
                need: None,
                priority: Priority::default(),
                min_replicas: MinReplicas::default(),
                slo: one.unwrap_or_default().mul_f64(times) + Duration::from_millis(5),
                max_batch_size: 128,
                payload: ByteCount::new(602_112),
                load_time: Duration::ZERO,
                latency_scale: 1.0,
                weights: None,
            });
        }
        let parts: Vec<f64> = (0..count)
            .map(|_| -(1.0 - random.unit()).ln() + 0.05)
            .collect();
        let load = devices as f64 * random.between(LOADS.0, LOADS.1) / parts.iter().sum::<f64>();
        let mut loads = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let traits = traits(&problem, index)?;
            let load = (load * part).min(1.0);
            problem.models[index].rate = RequestsPerSecond::new(load * traits.capacity)?;
            loads.push(load);
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]));
        let ordered = order.into_iter().map(|index| problem.models[index].clone());
        problem.models = ordered.collect();
        Ok(problem)
    }
}

fn traits(problem: &Problem, model: usize) -> anyhow::Result<ModelTraits> {
    let options = PlanningOptions::default();
    let found = ModelTraits::new(problem, &options, ModelIndex(model), DeviceIndex(0));
    found.ok_or_else(|| anyhow::anyhow!("a model of the pool does not fit a device"))
}

/// A running episode.
pub(crate) struct Episode {
    problem: Problem,
    slots: Vec<Slot>,
    /// The used part of each device's memory.
    used: Vec<f64>,
}

impl Episode {
    pub(crate) fn new(problem: Problem) -> anyhow::Result<Self> {
        let slot = |(index, model): (usize, &DemandedModel)| {
            Ok(Slot {
                traits: traits(&problem, index)?,
                rate: model.rate.get(),
                backlog: 0.0,
            })
        };
        let slots: anyhow::Result<Vec<Slot>> =
            problem.models.iter().enumerate().map(slot).collect();
        Ok(Self {
            slots: slots?,
            used: vec![0.0; problem.devices.len()],
            problem,
        })
    }

    pub(crate) fn heads(&self) -> Heads {
        Heads::new(self.slots.len(), self.used.len())
    }

    pub(crate) fn state(&self) -> Vec<f32> {
        observation(&self.slots, &self.used)
    }

    /// Applies a decision, one output for each head, and returns its reward.
    pub(crate) fn step(&mut self, chosen: &[usize], random: &mut Random) -> anyhow::Result<f32> {
        let placed: Vec<Placed> = chosen
            .as_chunks::<2>()
            .0
            .iter()
            .enumerate()
            .map(|(model, [device, level])| Placed {
                model: ModelIndex(model),
                device: DeviceIndex(device % OPTIONS),
                level: (level % OPTIONS) - (OPTIONS - LEVELS),
            })
            .collect();
        for (model, slot) in self.problem.models.iter_mut().zip(&self.slots) {
            model.rate = RequestsPerSecond::new(slot.rate + slot.backlog / STEP_S)?;
        }
        let plan = plan(&self.problem, &PlanningOptions::default(), &placed);
        let forecasts = estimate(&self.problem, &plan.replicas);
        self.used.fill(0.0);
        for replica in &plan.replicas {
            self.used[replica.device.0] += self.slots[replica.model.0].traits.memory;
        }
        let mut reward = 0.0;
        for ((slot, model), forecast) in self
            .slots
            .iter_mut()
            .zip(&self.problem.models)
            .zip(forecasts)
        {
            let late = 1.0 - forecast.goodput.get() / model.rate.get();
            reward += forecast.goodput.get() / slot.traits.single - PENALTY * late;
            slot.backlog = late * slot.rate * model.slo.as_secs_f64().min(STEP_S);
            let change = random.between(1.0 - RATE_CHANGE, 1.0 + RATE_CHANGE);
            slot.rate = (slot.rate * change).min(slot.traits.capacity);
        }
        Ok((reward / PENALTY) as f32)
    }
}

#[cfg(test)]
mod tests {
    use packhorse_placement::inss::{device_options, level_options};

    use super::*;

    /// Two models, each of 10 ms for a request and for eight.
    fn episode(rate: f64) -> Episode {
        let rows = "a,k,1,,10,,100,,,\na,k,8,,10,,100,,,\nb,k,1,,10,,100,,,\nb,k,8,,10,,100,,,\n";
        let model = |name: &str| DemandedModel {
            id: name.parse().expect("a name"),
            rate: RequestsPerSecond::new(rate).expect("a rate"),
            need: None,
            priority: Priority::default(),
            min_replicas: MinReplicas::default(),
            slo: Duration::from_millis(100),
            max_batch_size: 8,
            payload: ByteCount::new(0),
            load_time: Duration::ZERO,
            latency_scale: 1.0,
            weights: None,
        };
        let device = Device {
            kind: "k".parse().expect("a kind"),
            memory: ByteCount::from_mib(1_000).expect("a size"),
            multiprocessors: None,
            node: "n".parse().expect("a name"),
            cost_per_hour: None,
            pool: None,
        };
        let text = format!("{}\n{rows}", ProfileTable::CSV_HEADER);
        Episode::new(Problem {
            devices: vec![device.clone(), device],
            models: vec![model("a"), model("b")],
            profiles: ProfileTable::from_csv(&text).expect("a table"),
            ..Problem::default()
        })
        .expect("models that fit")
    }

    /// Returns the outputs that place the two models on these devices.
    fn chosen(devices: [usize; 2]) -> Vec<usize> {
        let outputs = devices.iter().enumerate().flat_map(|(model, device)| {
            [
                device_options(model).start + device,
                level_options(model).start + 7,
            ]
        });
        outputs.collect()
    }

    #[test]
    fn the_reward_is_throughput_less_the_penalty_for_late_requests() {
        // Each has a device, which carries 800 requests/s: all of 80 are in time. 80 / 100 for each model, over ω = 100.
        let mut easy = episode(80.0);
        let reward = easy.step(&chosen([0, 1]), &mut Random::new(1));
        assert!((reward.expect("a step") - 1.6 / 100.0).abs() < 1e-4);
        assert!(easy.slots[0].backlog < 1e-9);
        assert!((easy.used[0] - 0.1).abs() < 1e-9);
    }

    #[test]
    fn late_requests_are_the_backlog_of_the_next_step() {
        let mut hard = episode(790.0);
        let apart = hard
            .step(&chosen([0, 1]), &mut Random::new(1))
            .expect("a step");
        let mut shared = episode(790.0);
        let together = shared
            .step(&chosen([1, 1]), &mut Random::new(1))
            .expect("a step");
        assert!(together < apart - 0.5, "{together} and {apart}");
        // Of 790 requests/s those of the last 100 ms can still be in time, as far as they were late.
        assert!(shared.slots[0].backlog > 10.0 && shared.slots[0].backlog < 79.0);
        assert!((shared.used[1] - 0.2).abs() < 1e-9 && shared.used[0] < 1e-9);
    }

    #[test]
    fn problems_are_valid_and_ordered_by_load() {
        let pool = Pool::new().expect("the committed profiles");
        assert!(pool.models.len() > 60);
        let mut random = Random::new(5);
        for _ in 0..20 {
            let problem = pool.draw(&mut random).expect("a problem");
            problem.validate().expect("a valid problem");
            let episode = Episode::new(problem).expect("models that fit");
            let loads: Vec<f64> = episode.slots.iter().map(Slot::load).collect();
            assert!(loads.is_sorted_by(|a, b| a >= b), "{loads:?}");
            assert!(loads[0] <= 1.0 + 1e-9);
        }
    }
}
