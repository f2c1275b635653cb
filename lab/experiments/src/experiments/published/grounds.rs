//! The settings in which published schedulers are compared, and the schedulers.

use packhorse_cluster::{BatchStep, Discipline, LatencyModel};

use crate::{
    planner::Planner,
    setting::{Calibration, Setting, root},
    thesis::{GOODPUT, gpu_settings, load_settings, vision_settings},
};

/// The counted time of runs with the recorded load, in seconds: it has counts of four minutes.
const RECORDED_S: f64 = 239.0;

/// The same in a quick run.
const QUICK_RECORDED_S: f64 = 119.0;

/// The numbers of GPUs of the setting whose models do not all fit.
const MEMORY_SHORT_GPUS: [u32; 5] = [2, 4, 6, 8, 10];

/// The numbers of GPUs of that setting in a quick run.
const QUICK_MEMORY_SHORT_GPUS: [u32; 2] = [2, 6];

/// The most steps of the search of `goodput` there, which would go on for minutes.
pub(super) const MEMORY_SHORT_STEPS: u64 = 50_000;

/// The same in a quick run.
pub(super) const QUICK_MEMORY_SHORT_STEPS: u64 = 10_000;

/// The extent of the comparison in a group of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Everything.
    Full,
    /// One world, and `fixed-wait` left out, because runs are long.
    LongRuns,
    /// The nominal world, and the variants of policies left out, because planning is long. The client of the calibrated world, which is slow itself, would keep
    /// a large rate down.
    LongPlanning,
}

/// A group of settings.
pub(super) struct Ground {
    pub(super) name: &'static str,
    pub(super) settings: Vec<Setting>,
    /// True if all models fit the devices together, so that the target holds.
    pub(super) has_target: bool,
    extent: Extent,
    /// The most steps of the search of `goodput`; `None` for no limit.
    steps: Option<u64>,
}

impl Ground {
    fn new(name: &'static str, settings: Vec<Setting>, extent: Extent) -> Self {
        Self {
            name,
            settings,
            has_target: true,
            extent,
            steps: None,
        }
    }

    /// Returns the worlds that are simulated, out of these.
    pub(super) fn worlds(&self, worlds: &[Calibration]) -> Vec<Calibration> {
        match self.extent {
            Extent::Full => worlds.to_vec(),
            Extent::LongRuns => worlds[..1].to_vec(),
            Extent::LongPlanning => vec![Calibration::Nominal],
        }
    }

    /// Returns the entrants: planners, by the discipline that dispatches their plans.
    pub(super) fn entrants(&self) -> Vec<(Discipline, Vec<Planner>)> {
        let every = Planner::every_policy();
        let with_variants: Vec<Planner> = every.iter().cloned().chain(variants()).collect();
        match self.extent {
            Extent::Full => {
                let deferred = ["nexus", "herd", "gpulet", "wsm-milp", GOODPUT];
                let mut entrants = vec![
                    (Discipline::Deadline, with_variants.clone()),
                    (Discipline::FixedWait, with_variants),
                    (
                        Discipline::Symphony,
                        deferred.map(Planner::from_policy).to_vec(),
                    ),
                ];
                let systems = systems().into_iter();
                entrants.extend(systems.filter(|system| system.0 != Discipline::Symphony));
                entrants
            }
            Extent::LongRuns => {
                let mut entrants = vec![(Discipline::Deadline, with_variants)];
                entrants.extend(systems());
                entrants
            }
            Extent::LongPlanning => {
                let within_steps = |planner: Planner| match self.steps {
                    Some(steps) if planner.label == GOODPUT => planner.within_steps(steps),
                    _ => planner,
                };
                let every: Vec<Planner> = every.into_iter().map(within_steps).collect();
                let mut entrants = vec![
                    (Discipline::Deadline, every.clone()),
                    (Discipline::FixedWait, every),
                ];
                entrants.extend(systems());
                entrants
            }
        }
    }
}

/// Returns the variants of policies.
fn variants() -> [Planner; 4] {
    let policy = Planner::from_policy;
    let bda = |planner: Planner| planner.with_batch_step(BatchStep::Bda);
    [
        bda(policy("gpulet")),
        bda(policy("gpulet").with_latency_model(LatencyModel::Inss)),
        bda(policy("gslice")),
        policy("herd").greedy(),
    ]
}

/// Returns the published systems: a planner with the discipline of its own.
fn systems() -> Vec<(Discipline, Vec<Planner>)> {
    let system = |discipline, policy| (discipline, vec![Planner::from_policy(policy)]);
    vec![
        system(Discipline::Symphony, "nexus"),
        // Proteus gives a device one model.
        system(Discipline::Accscale, "exclusive"),
        system(Discipline::Aimd, "gpulet"),
        system(Discipline::Flex, "herd"),
        system(Discipline::FlexNp, "herd"),
        system(Discipline::Clockwork, "nexus"),
    ]
}

/// Returns all grounds, with fewer settings in a quick run.
pub(super) fn grounds(quick: bool) -> Vec<Ground> {
    let full = |name, settings| Ground::new(name, settings, Extent::Full);
    let bursts = [2.0, 4.0].into_iter().flat_map(|cv: f64| {
        let arrivals = toml::Table::from_iter([("gamma_cv".to_owned(), cv.into())]);
        vision_settings(&format!("CV {cv}"), "arrivals", &arrivals.into())
    });
    let hidden = [0.3, 0.6].into_iter().flat_map(|value: f64| {
        let part = format!("extra slowdown {value}");
        vision_settings(&part, "extra_slowdown", &value.into())
    });
    let counts = "../azure/functions2019-vision.csv";
    let arrivals = toml::Table::from_iter([("counts".to_owned(), counts.into())]);
    let recorded = vision_settings("Azure 2019", "arrivals", &arrivals.into()).into_iter();
    let recorded_s = if quick { QUICK_RECORDED_S } else { RECORDED_S };
    let recorded = recorded.map(|setting| setting.with_simulation("window_s", recorded_s));
    let scenario = |path: &str| Setting::file(root().join("scenarios").join(path));
    let thousand = scenario("scale/thousand.toml").labelled("a thousand GPUs");
    let gpus: &[u32] = if quick {
        &QUICK_MEMORY_SHORT_GPUS
    } else {
        &MEMORY_SHORT_GPUS
    };
    let memory_short = gpus.iter().map(|gpus| {
        let setting = scenario("zoo/memory-short.toml").with_devices(*gpus);
        setting.labelled(format!("{gpus} GPUs"))
    });
    vec![
        full("6.1", gpu_settings("6.1", 6)),
        full("6.10", gpu_settings("6.10", 8)),
        full("6.15", load_settings("6.15")),
        full("A.2", gpu_settings("A.2", 8)),
        full("bursts", bursts.collect()),
        full("hidden interference", hidden.collect()),
        Ground::new("Azure 2019", recorded.collect(), Extent::LongRuns),
        Ground::new("a thousand GPUs", vec![thousand], Extent::LongPlanning),
        Ground {
            has_target: false,
            steps: Some(if quick {
                QUICK_MEMORY_SHORT_STEPS
            } else {
                MEMORY_SHORT_STEPS
            }),
            ..Ground::new("memory short", memory_short.collect(), Extent::LongPlanning)
        },
    ]
}
