//! A family of variants under one name, beside its best and its cheapest variant alone.

use std::fmt::Write as _;

use packhorse_cluster::{DeviceIndex, Discipline};
use packhorse_simulator::{Report, Scenario};

use crate::{
    experiment::{Experiment, new_page},
    intervals::Interval,
    page::{Claim, Page},
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting, root},
    sweep::{Sweep, Trial},
    thesis::GOODPUT,
};

pub(crate) struct Variants;

/// The offered requests/s of the family.
const RATES: [f64; 6] = [400.0, 800.0, 1600.0, 2400.0, 3200.0, 4000.0];
/// The coefficients of variation of the gaps between arrivals of each variant's part.
const VARIATIONS: [f64; 2] = [1.0, 4.0];
/// The part of the devices' time in full batches that the fitted split fills.
const FILLED: f64 = 0.7;
/// The difference in points up to which two ways count as equal.
const TOLERANCE: f64 = 0.1;
/// The world: the models are not the thesis', whose calibration the other one has.
const WORLD: Calibration = Calibration::Nominal;

/// A way to serve the requests of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the most accurate variant alone.
    Best,
    /// By the cheapest variant alone.
    Cheapest,
    /// By all variants, each planned for an equal part of the rate.
    Even,
    /// By the one or two variants that give the most right answers within a part of the devices' time, planned for their parts of the rate.
    Fitted,
}

impl Way {
    const ALL: [Self; 4] = [Self::Best, Self::Cheapest, Self::Even, Self::Fitted];

    fn name(self) -> &'static str {
        match self {
            Self::Best => "best variant only",
            Self::Cheapest => "cheapest only",
            Self::Even => "family, even split",
            Self::Fitted => "family, fitted split",
        }
    }

    /// Returns the models that are planned for, with their rates, of a family with this rate.
    fn models(self, variants: &[Costed], devices: f64, rate: f64) -> Vec<(String, f64)> {
        let alone = |variant: &Costed| vec![(variant.name.clone(), rate)];
        let best = variants
            .iter()
            .max_by(|a, b| a.accuracy.total_cmp(&b.accuracy));
        let cheapest = variants
            .iter()
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        match self {
            Self::Best => best.map(alone).unwrap_or_default(),
            Self::Cheapest => cheapest.map(alone).unwrap_or_default(),
            Self::Even => {
                let part = rate / variants.len() as f64;
                let with_part = |variant: &Costed| (variant.name.clone(), part);
                variants.iter().map(with_part).collect()
            }
            Self::Fitted => fitted_split(variants, FILLED * devices / rate)
                .into_iter()
                .map(|(variant, part)| (variant.name.clone(), part * rate))
                .collect(),
        }
    }
}

/// A variant with its cost.
struct Costed {
    name: String,
    /// Percent of right answers.
    accuracy: f64,
    /// The time of a device per request, in full batches.
    seconds: f64,
}

/// Returns the variants of a scenario with their costs on its first device.
fn costed(scenario: &Scenario) -> Vec<Costed> {
    let models = scenario.problem.models().zip(&scenario.workloads);
    let costed = models.filter_map(|((index, model), workload)| {
        let profile = scenario.problem.profile(index, DeviceIndex(0))?;
        let batch = model.max_batch_size;
        Some(Costed {
            name: model.id.name.to_string(),
            accuracy: workload.variant.as_ref()?.accuracy,
            seconds: profile.latency(batch).as_secs_f64() / f64::from(batch),
        })
    });
    costed.collect()
}

/// Returns the split of a family's requests that has the largest mean accuracy among those that take at most so many seconds of a device
/// per request; only the cheapest variant if even that takes more. With one constraint, two variants are enough.
///
/// Source: the accuracy scaling of "Proteus: A High-Throughput Inference-Serving System with Accuracy Scaling" (ASPLOS 2024) as a linear
/// program for one kind of device, without its queueing and batching.
fn fitted_split(variants: &[Costed], seconds: f64) -> Vec<(&Costed, f64)> {
    let mut best: Option<(f64, Vec<(&Costed, f64)>)> = None;
    for cheap in variants {
        for dear in variants {
            let part = if cheap.seconds < dear.seconds {
                ((seconds - cheap.seconds) / (dear.seconds - cheap.seconds)).clamp(0.0, 1.0)
            } else {
                0.0
            };
            if part * dear.seconds + (1.0 - part) * cheap.seconds > seconds * (1.0 + 1e-9) {
                continue;
            }
            let accuracy = part * dear.accuracy + (1.0 - part) * cheap.accuracy;
            if best.as_ref().is_none_or(|best| accuracy > best.0) {
                best = Some((accuracy, vec![(cheap, 1.0 - part), (dear, part)]));
            }
        }
    }
    let cheapest = variants
        .iter()
        .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let split = best.map_or_else(
        || cheapest.map(|variant| (variant, 1.0)).into_iter().collect(),
        |best| best.1,
    );
    split.into_iter().filter(|(_, part)| *part > 0.0).collect()
}

impl Experiment for Variants {
    fn name(&self) -> &'static str {
        "variants"
    }

    fn title(&self) -> &'static str {
        "Variants of a model"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let file = || Setting::file(root().join("scenarios/zoo/variants.toml"));
        let scenario = file().scenario(WORLD)?;
        let (variants, devices) = (costed(&scenario), scenario.problem.devices.len() as f64);
        let mut settings = Vec::new();
        let mut keys = Vec::new();
        for variation in VARIATIONS {
            let arrivals = toml::Table::from_iter([("gamma_cv".to_owned(), variation.into())]);
            for rate in RATES {
                for way in Way::ALL {
                    let setting = file().with_simulation("arrivals", arrivals.clone());
                    settings.push(setting.with_models(way.models(&variants, devices, rate)));
                    keys.push((variation, rate, way));
                }
            }
        }
        let planners = [Planner::from_policy(GOODPUT)];
        let dispatches = vec![Discipline::Deadline.into()];
        let sweeps = runner.sweeps_in(&[WORLD], &settings, &planners, &[dispatches])?;
        let trial = |key: (f64, f64, Way)| {
            let setting = keys.iter().position(|other| *other == key)?;
            sweeps[0].trial_in(WORLD, setting, GOODPUT, Discipline::Deadline)
        };
        let mut page = new_page(self);
        page.paragraph(&format!(
            "Five ResNets under one name (`scenarios/zoo/variants.toml`, {WORLD} world) on {devices} V100s. A request for the family goes to the most accurate variant \
             that can answer in time when it arrives, else to a less accurate one. `{GOODPUT}` plans each variant for a part of the family's rate, and `deadline` \
             dispatches. *Even split*: equal parts. *Fitted split*: the parts of the one or two variants that give the most right answers within {:.0} % of the devices' \
             time in full batches, which is Proteus' accuracy scaling as a linear program. ± is the half of a 95 % confidence interval.",
            100.0 * FILLED
        ));
        page.paragraph(
            "Not optimised: the policies see the parts as models of their own, and do not choose the split, nor know that a request that finds one variant busy goes to \
             another. A request stays with the variant that it got at its arrival. The choice does not know either that variants \
             on one device take its time from each other: where they share devices that are nearly full, the accurate one can crowd out the cheap one.",
        );
        for variation in VARIATIONS {
            page.heading(&format!(
                "Arrivals with a coefficient of variation of {variation}"
            ));
            page.paragraph("Right answers in time, percent of the offered requests:");
            page.table(&table(|rate, way| {
                Some(text(trial((variation, rate, way))?, right_pct))
            }));
            page.paragraph("Answers in time, percent of the offered requests:");
            page.table(&table(|rate, way| {
                Some(text(trial((variation, rate, way))?, in_time_pct))
            }));
            page.paragraph("Accuracy of the answers in time, percent:");
            page.table(&table(|rate, way| {
                Some(text(trial((variation, rate, way))?, |report| {
                    100.0 * right_pct(report) / in_time_pct(report)
                }))
            }));
        }
        let mut worst = f64::INFINITY;
        for &(variation, rate, way) in &keys {
            let ours = trial((variation, rate, Way::Fitted));
            if let (Some(ours), Some(other)) = (ours, trial((variation, rate, way)))
                && matches!(way, Way::Best | Way::Cheapest)
            {
                let values =
                    |trial: &Trial| trial.reports.iter().map(right_pct).collect::<Vec<_>>();
                worst = worst.min(Interval::of_differences(&values(ours), &values(other)).mean);
            }
        }
        page.heading("Target");
        page.targets(&[Claim::new(
            format!("the family with the fitted split gives no fewer right answers than one variant, within {TOLERANCE} points"),
            format!("at worst {worst:+.2} points"),
            worst >= -TOLERANCE,
        )]);
        Ok((page, None))
    }
}

/// Returns the right answers in time in percent of the offered requests.
fn right_pct(report: &Report) -> f64 {
    100.0 * report.totals.right_rps.unwrap_or_default() / report.totals.offered_rps
}

/// Returns the answers in time in percent of the offered requests.
fn in_time_pct(report: &Report) -> f64 {
    100.0 * report.totals.goodput_rps / report.totals.offered_rps
}

fn text(trial: &Trial, value: impl Fn(&Report) -> f64) -> String {
    let values: Vec<f64> = trial.reports.iter().map(value).collect();
    Interval::new(&values).to_string()
}

/// Returns a table with a row per way and a column per rate.
fn table(cell: impl Fn(f64, Way) -> Option<String>) -> String {
    let rates: Vec<String> = RATES.iter().map(|rate| format!("{rate}/s")).collect();
    let mut text = format!(
        "| | {} |\n|---|{}\n",
        rates.join(" | "),
        "---:|".repeat(rates.len())
    );
    for way in Way::ALL {
        let cells = RATES.map(|rate| cell(rate, way).unwrap_or_else(|| "–".to_owned()));
        writeln!(text, "| {} | {} |", way.name(), cells.join(" | "))
            .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variants() -> Vec<Costed> {
        let variant = |name: &str, accuracy, seconds| Costed {
            name: name.to_owned(),
            accuracy,
            seconds,
        };
        vec![
            variant("large", 80.0, 4.0),
            variant("middle", 78.0, 2.0),
            variant("small", 70.0, 1.0),
        ]
    }

    #[test]
    fn the_fitted_split_takes_the_most_accurate_mix_that_fits() {
        let variants = variants();
        let split = |seconds| {
            let split = fitted_split(&variants, seconds).into_iter();
            let mut split: Vec<_> = split
                .map(|(variant, part)| (variant.name.as_str(), part))
                .collect();
            split.sort_by(|a, b| a.0.cmp(b.0));
            split
        };
        assert_eq!(split(5.0), [("large", 1.0)]);
        assert_eq!(split(3.0), [("large", 0.5), ("middle", 0.5)]);
        assert_eq!(split(1.5), [("middle", 0.5), ("small", 0.5)]);
        // Not even the cheapest one fits.
        assert_eq!(split(0.5), [("small", 1.0)]);
    }
}
