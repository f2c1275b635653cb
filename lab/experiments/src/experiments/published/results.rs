//! The results of all entrants in all settings.

use std::collections::BTreeMap;

use packhorse_cluster::Discipline;

use crate::{
    fluid_bound::fluid_bound,
    intervals::Interval,
    setting::Calibration,
    sweep::{Sweep, Trial},
    thesis::GOODPUT,
};

/// The key of a cell's row: ground, world and setting.
pub(super) type SettingKey = (usize, Calibration, usize);

/// An entrant in one setting.
pub(super) struct Cell {
    pub(super) planner: String,
    pub(super) discipline: Discipline,
    /// The share of the offered requests answered within the SLO, by seed.
    pub(super) shares: Vec<f64>,
    pub(super) goodput: f64,
    pub(super) offered: f64,
}

impl Cell {
    pub(super) fn is_ours(&self) -> bool {
        (self.planner.as_str(), self.discipline) == (GOODPUT, Discipline::Deadline)
    }

    /// Returns true if neither the policy nor the plan is ours. Ours with another dispatcher is no published system.
    pub(super) fn is_other(&self) -> bool {
        self.planner != GOODPUT
    }

    pub(super) fn name(&self) -> String {
        format!("{} + {}", self.planner, self.discipline)
    }

    pub(super) fn share(&self) -> Interval {
        Interval::new(&self.shares).scaled(100.0)
    }

    /// Returns the difference to another entrant in points, seed by seed: equal seeds have equal arrivals.
    pub(super) fn points_above(&self, other: &Self) -> Interval {
        Interval::of_differences(&self.shares, &other.shares).scaled(100.0)
    }
}

/// All results.
#[derive(Default)]
pub(super) struct Results {
    pub(super) names: Vec<&'static str>,
    /// True for each ground with a target.
    pub(super) have_target: Vec<bool>,
    pub(super) settings: BTreeMap<SettingKey, String>,
    pub(super) cells: BTreeMap<SettingKey, Vec<Cell>>,
    /// The fluid bound, in percent of the offered requests.
    pub(super) bounds: BTreeMap<SettingKey, f64>,
    pub(super) not_run: BTreeMap<String, String>,
    /// The cells that were given up, with the step that took too long.
    pub(super) given_up: BTreeMap<SettingKey, Vec<(String, &'static str)>>,
}

impl Results {
    pub(super) fn add(&mut self, ground: usize, discipline: Discipline, sweep: &Sweep) {
        for (key, trial) in &sweep.trials {
            let row = (ground, key.calibration, key.setting);
            let setting = &sweep.settings[key.setting];
            self.settings.insert(row, setting.name());
            let scenario = &sweep.scenarios[&(key.setting, key.calibration)];
            self.bounds
                .entry(row)
                .or_insert_with(|| mean_bound(scenario, trial));
            self.cells.entry(row).or_default().push(Cell {
                planner: sweep.planners[key.planner].clone(),
                discipline,
                shares: trial.shares(),
                goodput: trial.goodput(),
                offered: trial.offered(),
            });
        }
        for (key, step) in &sweep.given_up {
            let row = (ground, key.calibration, key.setting);
            let setting = &sweep.settings[key.setting];
            self.settings.insert(row, setting.name());
            let name = format!("{} + {discipline}", sweep.planners[key.planner]);
            self.given_up.entry(row).or_default().push((name, step));
        }
        self.not_run.extend(sweep.not_run.iter().cloned());
    }

    /// Returns the cell of `goodput` with `deadline`; `None` if it was given up.
    pub(super) fn ours(&self, row: &SettingKey) -> Option<&Cell> {
        self.cells[row].iter().find(|cell| cell.is_ours())
    }

    pub(super) fn best_other(&self, row: &SettingKey) -> Option<&Cell> {
        let others = self.cells[row].iter().filter(|cell| cell.is_other());
        others.max_by(|a, b| a.goodput.total_cmp(&b.goodput))
    }

    /// Returns the rows of a ground in a world.
    pub(super) fn rows(
        &self,
        ground: usize,
        world: Calibration,
    ) -> impl Iterator<Item = &SettingKey> {
        let rows = self.cells.keys();
        rows.filter(move |row| (row.0, row.1) == (ground, world))
    }

    /// Returns the worlds with results.
    pub(super) fn worlds(&self) -> Vec<Calibration> {
        let worlds = Calibration::ALL.into_iter();
        let has_any = |world: &Calibration| self.cells.keys().any(|row| row.1 == *world);
        worlds.filter(has_any).collect()
    }

    pub(super) fn has(&self, ground: usize, world: Calibration) -> bool {
        self.rows(ground, world).next().is_some()
    }

    /// Returns the share of an entrant over all settings of a ground, in percent; `None` if it was not run there.
    pub(super) fn ground_share(
        &self,
        ground: usize,
        world: Calibration,
        name: &str,
    ) -> Option<f64> {
        let (mut good, mut offered) = (0.0, 0.0);
        for row in self.rows(ground, world) {
            let mut cells = self.cells[row].iter();
            let cell = cells.find(|cell| cell.name() == name)?;
            good += cell.goodput;
            offered += cell.offered;
        }
        (offered > 0.0).then_some(100.0 * good / offered)
    }

    /// Returns the names of all entrants, in the order in which they were run.
    pub(super) fn entrants(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for cell in self.cells.values().flatten() {
            if !names.contains(&cell.name()) {
                names.push(cell.name());
            }
        }
        names
    }

    pub(super) fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = [
            "ground",
            "world",
            "setting",
            "policy",
            "discipline",
            "seeds",
            "offered_rps",
            "goodput_rps",
            "share_pct",
            "share_ci95_pct",
            "points_below_goodput",
            "points_ci95",
            "fluid_bound_pct",
        ];
        writer
            .write_record(header)
            .expect("writing to memory cannot fail");
        for (row, cells) in &self.cells {
            let ours = self.ours(row);
            let half = |interval: Interval| {
                interval
                    .half
                    .map_or(String::new(), |half| format!("{half:.3}"))
            };
            for cell in cells {
                let (share, below) = (cell.share(), ours.map(|ours| ours.points_above(cell)));
                let record = [
                    self.names[row.0].to_owned(),
                    row.1.to_string(),
                    self.settings[row].clone(),
                    cell.planner.clone(),
                    cell.discipline.to_string(),
                    cell.shares.len().to_string(),
                    format!("{:.1}", cell.offered),
                    format!("{:.1}", cell.goodput),
                    format!("{:.3}", share.mean),
                    half(share),
                    below.map_or(String::new(), |below| format!("{:.3}", below.mean)),
                    below.map_or(String::new(), half),
                    format!("{:.3}", self.bounds[row]),
                ];
                writer
                    .write_record(record)
                    .expect("writing to memory cannot fail");
            }
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("the fields are UTF-8")
    }
}

/// Returns the fluid bound in percent of the offered requests, in the mean over seeds.
fn mean_bound(scenario: &packhorse_simulator::Scenario, trial: &Trial) -> f64 {
    let bound = |report| 100.0 * fluid_bound(scenario, report) / report.totals.offered_rps;
    trial.reports.iter().map(bound).sum::<f64>() / trial.reports.len() as f64
}
