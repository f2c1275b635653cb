//! The policies and the settings of the thesis.

use packhorse_cluster::Discipline;

use crate::{
    planner::Planner,
    setting::{Calibration, Setting},
    sweep::Sweep,
};

/// The policies that the thesis compares and whose data are published.
pub(crate) const THESIS_POLICIES: [&str; 4] = ["usher", "wao-usher", "ao-milp", "wsm-milp"];

/// The policy of the experiments beyond the thesis.
pub(crate) const GOODPUT: &str = "goodput";

/// The SLOs of figures 6.15 and A.3, in milliseconds.
pub(crate) const SLOS: [u32; 3] = [150, 250, 350];

/// The loads of figures 6.15 and A.3, in requests per second of all models together.
pub(crate) const LOADS: [u32; 5] = [1000, 2000, 3000, 4000, 5000];

/// Returns a planner for each policy of the thesis.
pub(crate) fn thesis_planners() -> Vec<Planner> {
    THESIS_POLICIES.map(Planner::from_policy).to_vec()
}

/// Returns the settings of a figure with one to `most` GPUs.
pub(crate) fn gpu_settings(figure: &str, most: usize) -> Vec<Setting> {
    (1..=most)
        .map(|gpus| Setting::with_gpus(figure, gpus))
        .collect()
}

/// Returns the settings of figure 6.15 or A.3: every SLO with every load, ordered by SLO.
pub(crate) fn load_settings(figure: &str) -> Vec<Setting> {
    let with_slo = |slo: u32| {
        LOADS.map(|load| {
            let file = format!("{figure}-slo-{slo}-load-{load}");
            Setting::new(format!("{load}/s"), &file).in_part(format!("SLO {slo} ms"))
        })
    };
    SLOS.into_iter().flat_map(with_slo).collect()
}

/// Returns the settings of figure 6.15 with the largest load, one per SLO.
pub(crate) fn largest_load_settings() -> Vec<Setting> {
    let largest = load_settings("6.15").into_iter().skip(LOADS.len() - 1);
    largest.step_by(LOADS.len()).collect()
}

/// Returns the three figures that the thesis discusses, with their settings.
pub(crate) fn figures() -> [(&'static str, Vec<Setting>); 3] {
    [
        ("6.1", gpu_settings("6.1", 6)),
        ("6.10", gpu_settings("6.10", 8)),
        ("6.15", load_settings("6.15")),
    ]
}

/// Returns the settings of figure 6.1 with three to six GPUs and one changed value of the simulation.
pub(crate) fn vision_settings(part: &str, key: &'static str, value: &toml::Value) -> Vec<Setting> {
    let setting = |gpus| {
        Setting::with_gpus("6.1", gpus)
            .in_part(part)
            .with_simulation(key, value.clone())
    };
    (3..=6).map(setting).collect()
}

/// Returns the thesis' policy with the highest goodput in a setting, with this goodput.
pub(crate) fn best_of_the_thesis(
    sweep: &Sweep,
    calibration: Calibration,
    setting: usize,
    discipline: Discipline,
) -> Option<(&'static str, f64)> {
    THESIS_POLICIES
        .into_iter()
        .filter_map(|name| {
            let trial = sweep.trial_in(calibration, setting, name, discipline)?;
            Some((name, trial.goodput()))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
}
