//! What came out of many trials, and the tables and figures that all experiments have.

use std::{collections::BTreeMap, fmt::Write as _};

use packhorse_cluster::Discipline;
use packhorse_figures::{
    BarChart, BarGroup, Figure, Panel, Series,
    runs::{self, Runs},
};
use packhorse_simulator::{ModelReport, PlanReport, Report, Scenario};

use crate::{
    lab::Planner,
    setting::{Setting, World},
};

/// The thesis' dispatcher, and ours.
pub(crate) const DISCIPLINES: [Discipline; 2] = [Discipline::FixedWait, Discipline::Deadline];

/// Which trial: places in the sweep's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrialKey {
    pub(crate) setting: usize,
    pub(crate) world: World,
    pub(crate) planner: usize,
    pub(crate) discipline: Discipline,
}

/// A plan tried with every seed.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) plan: PlanReport,
    /// One per seed; only the first has its curves.
    pub(crate) reports: Vec<Report>,
}

impl Trial {
    fn mean(&self, of: impl Fn(&Report) -> f64) -> f64 {
        self.reports.iter().map(of).sum::<f64>() / self.reports.len() as f64
    }

    pub(crate) fn goodput(&self) -> f64 {
        self.mean(|report| report.totals.goodput_rps)
    }

    pub(crate) fn offered(&self) -> f64 {
        self.mean(|report| report.totals.offered_rps)
    }

    /// Of the offered requests, the part that was answered within the SLO.
    pub(crate) fn share(&self) -> f64 {
        self.goodput() / self.offered()
    }

    /// The mean of something of one model.
    pub(crate) fn model(&self, name: &str, of: impl Fn(&ModelReport) -> f64) -> f64 {
        self.mean(|report| {
            report
                .models
                .iter()
                .filter(|model| model.name == name)
                .map(&of)
                .sum()
        })
    }

    /// Of one model's offered requests, the part that was answered within the SLO.
    pub(crate) fn model_share(&self, name: &str) -> f64 {
        self.model(name, |model| model.goodput_rps) / self.model(name, |model| model.offered_rps)
    }

    pub(crate) fn runs(&self, label: impl Into<String>) -> Runs<'_> {
        Runs {
            label: label.into(),
            reports: self.reports.iter().collect(),
        }
    }

    /// The first seed's report of one model.
    pub(crate) fn first(&self, name: &str) -> Option<&ModelReport> {
        self.reports
            .first()?
            .models
            .iter()
            .find(|model| model.name == name)
    }
}

/// Every planner in every setting, with every discipline, in every world.
pub(crate) struct Sweep {
    pub(crate) settings: Vec<Setting>,
    /// The planners' labels.
    pub(crate) planners: Vec<String>,
    pub(crate) worlds: Vec<World>,
    seeds: Vec<u64>,
    pub(crate) scenarios: BTreeMap<(usize, World), Scenario>,
    pub(crate) trials: BTreeMap<TrialKey, Trial>,
    /// Planners that could not, and why.
    pub(crate) not_run: Vec<(String, String)>,
}

impl Sweep {
    pub(crate) fn new(
        settings: &[Setting],
        planners: &[Planner],
        worlds: &[World],
        seeds: &[u64],
    ) -> Self {
        Self {
            settings: settings.to_vec(),
            planners: planners
                .iter()
                .map(|planner| planner.label.clone())
                .collect(),
            worlds: worlds.to_vec(),
            seeds: seeds.to_vec(),
            scenarios: BTreeMap::new(),
            trials: BTreeMap::new(),
            not_run: Vec::new(),
        }
    }

    /// A trial of the calibrated world; none if the planner was not run.
    pub(crate) fn trial(
        &self,
        setting: usize,
        planner: &str,
        discipline: Discipline,
    ) -> Option<&Trial> {
        self.trial_in(World::Calibrated, setting, planner, discipline)
    }

    pub(crate) fn trial_in(
        &self,
        world: World,
        setting: usize,
        planner: &str,
        discipline: Discipline,
    ) -> Option<&Trial> {
        let planner = self.planners.iter().position(|label| label == planner)?;
        self.trials.get(&TrialKey {
            setting,
            world,
            planner,
            discipline,
        })
    }

    /// The planners that were run.
    pub(crate) fn run(&self) -> impl Iterator<Item = &String> {
        let is_run = |label: &&String| !self.not_run.iter().any(|(other, _)| other == *label);
        self.planners.iter().filter(is_run)
    }

    /// Summed over the settings, the offered requests that the best of these planners in each setting answered within the SLO.
    pub(crate) fn best_share(
        &self,
        world: World,
        planners: &[&str],
        discipline: Discipline,
    ) -> Option<f64> {
        let (mut good, mut offered) = (0.0, 0.0);
        for setting in 0..self.settings.len() {
            let trials = planners
                .iter()
                .filter_map(|planner| self.trial_in(world, setting, planner, discipline));
            let best = trials.max_by(|a, b| a.goodput().total_cmp(&b.goodput()))?;
            good += best.goodput();
            offered += best.offered();
        }
        Some(good / offered)
    }

    /// Which seeds, for a note.
    pub(crate) fn seeds(&self) -> String {
        match self.seeds.as_slice() {
            [seed] => format!("seed {seed}"),
            [first, .., last] => format!("means of seeds {first} to {last}"),
            [] => String::new(),
        }
    }

    /// Names and settings of the parts, in their order.
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

    /// Stacked bars per setting and planner beside the ideal, a panel per part.
    pub(crate) fn goodput_figure(&self, title: &str, discipline: Discipline) -> Figure {
        let panels = self.parts().into_iter().map(|(part, settings)| {
            let mut chart = self.goodput_chart(&settings, discipline);
            part.clone_into(&mut chart.title);
            Panel::Bars(chart)
        });
        Figure {
            title: format!("{title}, dispatched by {discipline}"),
            notes: vec![format!("calibrated world, {}", self.seeds())],
            columns: 1,
            panels: panels.collect(),
        }
    }

    fn goodput_chart(&self, settings: &[usize], discipline: Discipline) -> BarChart {
        let group = |&i: &usize| {
            let trials: Vec<(&String, &Trial)> = self
                .run()
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

    /// The share within the SLO of every planner in every setting, in percent, a table per part; the best of a column stands out.
    pub(crate) fn tables(&self, world: World, discipline: Discipline) -> Vec<String> {
        let parts = self.parts().into_iter();
        parts
            .map(|(part, settings)| self.table(part, &settings, world, discipline))
            .collect()
    }

    fn table(
        &self,
        part: &str,
        settings: &[usize],
        world: World,
        discipline: Discipline,
    ) -> String {
        let shares = |planner: &str| -> Vec<Option<f64>> {
            let share =
                |&i: &usize| Some(100.0 * self.trial_in(world, i, planner, discipline)?.share());
            settings.iter().map(share).collect()
        };
        let rows: Vec<(&String, Vec<Option<f64>>)> = self
            .run()
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
                .expect("a string takes everything");
        }
        text
    }

    /// How long the planners took.
    pub(crate) fn solve_times(&self) -> String {
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
                .expect("a string takes everything");
            }
        }
        text
    }

    /// All means, a row per trial, with a column for the goodput of each model.
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
            .expect("memory takes every row");
        for (key, trial) in &self.trials {
            let mut row = vec![
                key.world.to_string(),
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
                    .map(|model| trial.model(&model.label, |model| model.goodput_rps)),
            );
            row.extend(numbers.into_iter().map(|number| format!("{number:.1}")));
            writer.write_record(&row).expect("memory takes every row");
        }
        let bytes = writer.into_inner().expect("memory takes every row");
        String::from_utf8(bytes).expect("the fields are UTF-8")
    }
}
