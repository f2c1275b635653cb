//! The results of many trials, and the tables and figures that all experiments have.

use std::{collections::BTreeMap, fmt::Write as _};

use packhorse_cluster::Discipline;
use packhorse_figures::{
    BarChart, BarGroup, Figure, Panel, Series,
    runs::{self, Runs},
};
use packhorse_simulator::{ModelReport, PlanReport, Report, Scenario};

use crate::{
    planner::Planner,
    setting::{Calibration, Setting},
};

/// The thesis' dispatcher and Packhorse's.
pub(crate) const DISCIPLINES: [Discipline; 2] = [Discipline::FixedWait, Discipline::Deadline];

/// The key of a trial: its indices in the sweep's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrialKey {
    pub(crate) setting: usize,
    pub(crate) calibration: Calibration,
    pub(crate) planner: usize,
    pub(crate) discipline: Discipline,
}

/// The simulations of a plan with every seed.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) plan: PlanReport,
    /// The reports, one per seed; only the first has its curves.
    pub(crate) reports: Vec<Report>,
}

impl Trial {
    /// Returns the mean of a value over the seeds.
    fn mean(&self, value: impl Fn(&Report) -> f64) -> f64 {
        self.reports.iter().map(value).sum::<f64>() / self.reports.len() as f64
    }

    pub(crate) fn goodput(&self) -> f64 {
        self.mean(|report| report.totals.goodput_rps)
    }

    pub(crate) fn offered(&self) -> f64 {
        self.mean(|report| report.totals.offered_rps)
    }

    /// Returns the share of the offered requests that was answered within the SLO.
    pub(crate) fn share(&self) -> f64 {
        self.goodput() / self.offered()
    }

    /// Returns the mean of a value of one model over the seeds.
    pub(crate) fn model_mean(&self, name: &str, value: impl Fn(&ModelReport) -> f64) -> f64 {
        self.mean(|report| {
            report
                .models
                .iter()
                .filter(|model| model.name == name)
                .map(&value)
                .sum()
        })
    }

    /// Returns the share of one model's offered requests that was answered within the SLO.
    pub(crate) fn model_share(&self, name: &str) -> f64 {
        self.model_mean(name, |model| model.goodput_rps)
            / self.model_mean(name, |model| model.offered_rps)
    }

    /// Returns the share of the offered requests that was answered within the SLO, for each seed.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let share = |report: &Report| report.totals.goodput_rps / report.totals.offered_rps;
        self.reports.iter().map(share).collect()
    }

    pub(crate) fn runs(&self, label: impl Into<String>) -> Runs<'_> {
        Runs {
            label: label.into(),
            reports: self.reports.iter().collect(),
        }
    }

    /// Returns the first seed's report of one model.
    pub(crate) fn first_report(&self, name: &str) -> Option<&ModelReport> {
        self.reports
            .first()?
            .models
            .iter()
            .find(|model| model.name == name)
    }
}

/// The trials of every planner in every setting, with every discipline and calibration.
pub(crate) struct Sweep {
    pub(crate) settings: Vec<Setting>,
    /// The labels of the planners.
    pub(crate) planners: Vec<String>,
    pub(crate) calibrations: Vec<Calibration>,
    seeds: Vec<u64>,
    pub(crate) scenarios: BTreeMap<(usize, Calibration), Scenario>,
    pub(crate) trials: BTreeMap<TrialKey, Trial>,
    /// The planners that were not run, with the reasons.
    pub(crate) not_run: Vec<(String, String)>,
    /// The trials that were given up, because planning or a run took too long, with which of the two.
    pub(crate) given_up: BTreeMap<TrialKey, &'static str>,
}

impl Sweep {
    pub(crate) fn new(
        settings: &[Setting],
        planners: &[Planner],
        calibrations: &[Calibration],
        seeds: &[u64],
    ) -> Self {
        Self {
            settings: settings.to_vec(),
            planners: planners
                .iter()
                .map(|planner| planner.label.clone())
                .collect(),
            calibrations: calibrations.to_vec(),
            seeds: seeds.to_vec(),
            scenarios: BTreeMap::new(),
            trials: BTreeMap::new(),
            not_run: Vec::new(),
            given_up: BTreeMap::new(),
        }
    }

    /// Returns a trial of the calibrated world; `None` if the planner was not run.
    pub(crate) fn trial(
        &self,
        setting: usize,
        planner: &str,
        discipline: Discipline,
    ) -> Option<&Trial> {
        self.trial_in(Calibration::Calibrated, setting, planner, discipline)
    }

    pub(crate) fn trial_in(
        &self,
        calibration: Calibration,
        setting: usize,
        planner: &str,
        discipline: Discipline,
    ) -> Option<&Trial> {
        let planner = self.planners.iter().position(|label| label == planner)?;
        self.trials.get(&TrialKey {
            setting,
            calibration,
            planner,
            discipline,
        })
    }

    /// Returns the labels of the planners that were run.
    pub(crate) fn run_planners(&self) -> impl Iterator<Item = &String> {
        let is_run = |label: &&String| !self.not_run.iter().any(|(other, _)| other == *label);
        self.planners.iter().filter(is_run)
    }

    /// Returns the share of the offered requests of all settings that was answered within the SLO with the best of the planners in each
    /// setting.
    pub(crate) fn best_share(
        &self,
        calibration: Calibration,
        planners: &[&str],
        discipline: Discipline,
    ) -> Option<f64> {
        let (mut good, mut offered) = (0.0, 0.0);
        for setting in 0..self.settings.len() {
            let trials = planners
                .iter()
                .filter_map(|planner| self.trial_in(calibration, setting, planner, discipline));
            let best = trials.max_by(|a, b| a.goodput().total_cmp(&b.goodput()))?;
            good += best.goodput();
            offered += best.offered();
        }
        Some(good / offered)
    }

    /// Describes the seeds, for a note.
    pub(crate) fn describe_seeds(&self) -> String {
        match self.seeds.as_slice() {
            [seed] => format!("seed {seed}"),
            [first, .., last] => format!("means of seeds {first} to {last}"),
            [] => String::new(),
        }
    }

    /// Returns the names and settings of the parts, in their order.
    fn parts(&self) -> Vec<(&str, Vec<usize>)> {
        let mut parts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (i, setting) in self.settings.iter().enumerate() {
            match parts.iter_mut().find(|part| part.0 == setting.part) {
                Some(part) => part.1.push(i),
                None => parts.push((&setting.part, vec![i])),
            }
        }
        parts
    }

    /// Returns a figure of stacked bars per setting and planner, with the ideal, and a panel per part.
    pub(crate) fn goodput_figure(&self, title: &str, discipline: Discipline) -> Figure {
        let panels = self.parts().into_iter().map(|(part, settings)| {
            let mut chart = self.goodput_chart(&settings, discipline);
            part.clone_into(&mut chart.title);
            Panel::Bars(chart)
        });
        Figure {
            title: format!("{title}, dispatched by {discipline}"),
            notes: vec![format!("calibrated world, {}", self.describe_seeds())],
            columns: 1,
            panels: panels.collect(),
        }
    }

    fn goodput_chart(&self, settings: &[usize], discipline: Discipline) -> BarChart {
        let group = |&i: &usize| {
            let trials: Vec<(&String, &Trial)> = self
                .run_planners()
                .filter_map(|planner| Some((planner, self.trial(i, planner, discipline)?)))
                .collect();
            let goodput =
                |(planner, trial): &(&String, &Trial)| trial.runs(planner.as_str()).goodput();
            let mut bars: Vec<_> = trials.iter().map(goodput).collect();
            bars.extend(trials.first().map(|(_, trial)| trial.runs("ideal").ideal()));
            BarGroup {
                label: self.settings[i].label.clone(),
                bars,
            }
        };
        BarChart {
            value_axis: "requests/s within the SLO".to_owned(),
            series: self.models(),
            groups: settings.iter().map(group).collect(),
            ..BarChart::default()
        }
    }

    fn models(&self) -> Vec<Series> {
        self.trials
            .values()
            .next()
            .map_or_else(Vec::new, |trial| runs::model_series(&trial.plan))
    }

    /// Returns the share within the SLO of every planner in every setting, in percent, as one table per part. The best of a column is bold.
    pub(crate) fn share_tables(
        &self,
        calibration: Calibration,
        discipline: Discipline,
    ) -> Vec<String> {
        let parts = self.parts().into_iter();
        parts
            .map(|(part, settings)| self.table(part, &settings, calibration, discipline))
            .collect()
    }

    fn table(
        &self,
        part: &str,
        settings: &[usize],
        calibration: Calibration,
        discipline: Discipline,
    ) -> String {
        let shares = |planner: &str| -> Vec<Option<f64>> {
            let share = |&i: &usize| {
                Some(100.0 * self.trial_in(calibration, i, planner, discipline)?.share())
            };
            settings.iter().map(share).collect()
        };
        let rows: Vec<(&String, Vec<Option<f64>>)> = self
            .run_planners()
            .map(|planner| (planner, shares(planner)))
            .collect();
        let best = |i: usize| rows.iter().filter_map(|row| row.1[i]).fold(0.0, f64::max);
        let labels: Vec<&str> = settings
            .iter()
            .map(|&i| self.settings[i].label.as_str())
            .collect();
        let mut text = format!(
            "| {part} | {} |\n|---|{}\n",
            labels.join(" | "),
            "---:|".repeat(labels.len())
        );
        for (planner, shares) in &rows {
            let cell = |(i, share): (usize, &Option<f64>)| match share {
                Some(share) if *share > best(i) - 0.05 => format!("**{share:.1}**"),
                Some(share) => format!("{share:.1}"),
                None => "–".to_owned(),
            };
            let cells: Vec<String> = shares.iter().enumerate().map(cell).collect();
            writeln!(text, "| {planner} | {} |", cells.join(" | "))
                .expect("writing to a string cannot fail");
        }
        text
    }

    /// Returns a table of the planners' times.
    pub(crate) fn solve_time_table(&self) -> String {
        let mut text = "| | median ms | longest ms | for |\n|---|---:|---:|---|\n".to_owned();
        for (i, planner) in self.planners.iter().enumerate() {
            let trials = self.trials.iter().filter(|(key, _)| key.planner == i);
            let mut times: Vec<(f64, usize)> = trials
                .map(|(key, trial)| (trial.plan.solve_ms, key.setting))
                .collect();
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let Some(&(longest, setting)) = times.last() {
                let (median, setting) = (times[times.len() / 2].0, self.settings[setting].name());
                writeln!(
                    text,
                    "| {planner} | {median:.1} | {longest:.1} | {setting} |"
                )
                .expect("writing to a string cannot fail");
            }
        }
        text
    }

    /// Returns all means as CSV, a row per trial, with a column for the goodput of each model.
    pub(crate) fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let models = self.models();
        let mut header: Vec<String> = [
            "world",
            "part",
            "setting",
            "policy",
            "discipline",
            "replicas",
            "devices_used",
            "predicted_goodput_rps",
            "offered_rps",
            "throughput_rps",
            "goodput_rps",
            "dropped",
        ]
        .map(str::to_owned)
        .into();
        header.extend(
            models
                .iter()
                .map(|model| format!("goodput_rps_{}", model.label)),
        );
        writer
            .write_record(&header)
            .expect("writing to memory cannot fail");
        for (key, trial) in &self.trials {
            let mut row = vec![
                key.calibration.to_string(),
                self.settings[key.setting].part.clone(),
                self.settings[key.setting].label.clone(),
                self.planners[key.planner].clone(),
                key.discipline.to_string(),
                trial.plan.replicas.len().to_string(),
                trial.plan.devices_used.to_string(),
            ];
            let mut numbers = vec![trial.plan.predicted_goodput_rps];
            numbers.extend([
                trial.offered(),
                trial.mean(|report| report.totals.throughput_rps),
                trial.goodput(),
                trial.mean(|report| report.totals.dropped as f64),
            ]);
            numbers.extend(
                models
                    .iter()
                    .map(|model| trial.model_mean(&model.label, |model| model.goodput_rps)),
            );
            row.extend(numbers.into_iter().map(|number| format!("{number:.1}")));
            writer
                .write_record(&row)
                .expect("writing to memory cannot fail");
        }
        let bytes = writer.into_inner().expect("writing to memory cannot fail");
        String::from_utf8(bytes).expect("the fields are UTF-8")
    }
}
