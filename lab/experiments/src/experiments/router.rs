//! The sensitivity of the thesis' router to reserves of one percent and to the choice among several optima.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use packhorse_cluster::Discipline;
use packhorse_simulator::DispatchOptions;

use crate::{
    experiment::{Experiment, new_page},
    page::Page,
    planner::Planner,
    runner::Runner,
    setting::{Calibration, Setting, VISION_SCALE},
    sweep::{Sweep, Trial},
    thesis::{THESIS_POLICIES, figures},
};

pub(crate) struct Router;

/// The real time of vision models over the profile's: as fitted, and slightly less.
const SCALES: [f64; 3] = [VISION_SCALE, 1.21, 1.20];
const EFFICIENTNET: &str = "efficientnet_b7";
const USHER: &str = "thesis' usher";
/// The number of seeds of the standard deviation.
const SEEDS: u64 = 100;

impl Experiment for Router {
    fn name(&self) -> &'static str {
        "router"
    }

    fn title(&self) -> &'static str {
        "The sensitivity of the thesis' router"
    }

    fn run(&self, runner: &Runner) -> anyhow::Result<(Page, Option<Sweep>)> {
        let mut page = new_page(self);
        page.paragraph(
            "With `fixed-wait`, the best of the thesis' policies in each setting serves less here than in the prototype that preceded Packhorse, which has .776, .692 and \
            .739 on figures 6.1, 6.10 and 6.15. Two causes unrelated to the simulated physics change these numbers.",
        );
        page.heading("Reserves of one percent");
        page.paragraph(&format!(
            "The router drops nothing: if a replica receives one percent more than it can serve, its queue grows during the whole run. The plans have many such replicas, \
            because they are made with the times of the profiles: two replicas of efficientnet_b7 with batches of 8, or of densenet121 with batches of 4, can serve 520 \
            requests/s where 500 are planned, but only 426 if inference takes 1.22 times as long, while clients reach 432. The result therefore depends on the third digit \
            of that factor, which is fitted to numbers read from plots, and on chance. The two columns on the right contain the goodput of efficientnet_b7 on six GPUs with \
            the thesis' plan of Usher, for which the thesis measured 360.61 requests/s: the mean and standard deviation of one run over {SEEDS} seeds, and the mean of \
            seeds 1 to 5, which all pages here use.",
        ));
        page.table(&scale_table(runner)?);
        page.heading("Ties");
        page.paragraph(
            "The MILPs have several optimal plans, and HiGHS returns one of them. `--prefer small-batch` chooses the one with the smallest batches among those with the \
            same goodput.",
        );
        page.table(&tie_table(runner)?);
        page.paragraph(
            "The choice matters most in figure 6.15 at 2000 requests/s, 400 for each model. A replica of vgg19 with batches of 4 can serve 408 requests/s by its profile, \
            but only 334 of the 356 that clients reach. With batches of 8 the plan of WSM-MILP has the same objective value, and vgg19 is served:",
        );
        page.table(&vgg19_table(runner)?);
        page.heading("The thesis' own plans");
        page.paragraph(
            "The plans in the thesis (`scenarios/thesis/README.md` says which parts are from it and which are filled in) compared with the plans of the same policies \
            here: percent within the SLO, and the batch sizes that differ, ours → the thesis'.",
        );
        page.table(&thesis_plan_table(runner)?);
        page.heading("Conclusion");
        page.paragraph(
            "Figure 6.10 has the prototype's number within .003. On figure 6.1 ties do not explain the difference, but a factor between 1.21 and 1.20 does, and at 1.21 \
            efficientnet_b7 has the goodput that the thesis measured. On figure 6.15 both the tie of vgg19 and the factor matter. The factor remains 1.22, as it was \
            fitted; `deadline`, which drops requests that cannot be in time, does not depend on it.",
        );
        Ok((page, None))
    }
}

/// The scenario, the policy and the file of each plan of the thesis for settings of the three figures.
const THESIS_PLANS: [(&str, &str, &str); 16] = [
    ("6.1-gpus-2", "usher", "6.2-usher-gpus-2.json"),
    ("6.1-gpus-3", "usher", "6.2-usher-gpus-3.json"),
    ("6.1-gpus-4", "usher", "6.2-usher-gpus-4.json"),
    ("6.1-gpus-4", "wao-usher", "6.3-wao-usher.json"),
    ("6.1-gpus-5", "wsm-milp", "6.7-wsm-milp.json"),
    ("6.1-gpus-6", "usher", "6.5-usher.json"),
    ("6.1-gpus-6", "ao-milp", "6.5-ao-milp.json"),
    ("6.10-gpus-4", "wao-usher", "6.11-wao-usher.json"),
    ("6.10-gpus-5", "usher", "6.12-usher.json"),
    ("6.10-gpus-5", "wsm-milp", "6.12-wsm-milp.json"),
    ("6.10-gpus-6", "wsm-milp", "6.13-wsm-milp-gpus-6.json"),
    ("6.10-gpus-7", "wsm-milp", "6.13-wsm-milp-gpus-7.json"),
    (
        "6.15-slo-250-load-3000",
        "wsm-milp",
        "6.16-wsm-milp-load-3000.json",
    ),
    (
        "6.15-slo-250-load-4000",
        "wsm-milp",
        "6.16-wsm-milp-load-4000.json",
    ),
    (
        "6.15-slo-250-load-3000",
        "ao-milp",
        "6.18-ao-milp-load-3000.json",
    ),
    (
        "6.15-slo-250-load-5000",
        "ao-milp",
        "6.18-ao-milp-load-5000.json",
    ),
];

/// Returns a table with a row per plan of the thesis.
fn thesis_plan_table(runner: &Runner) -> anyhow::Result<String> {
    let mut text =
        "| | policy | ours | the thesis' | batches |\n|---|---|---:|---:|---|\n".to_owned();
    for (setting, policy, file) in THESIS_PLANS {
        let planners = [
            Planner::from_policy(policy),
            Planner::from_file("thesis", file),
        ];
        let sweep = sweep_fixed_wait(runner, &[Setting::new(setting, setting)], &planners)?;
        let trial = |label| sweep.trial(0, label, Discipline::FixedWait);
        let (Some(ours), Some(theirs)) = (trial(policy), trial("thesis")) else {
            continue;
        };
        writeln!(
            text,
            "| {setting} | {policy} | {:.1} | {:.1} | {} |",
            100.0 * ours.share(),
            100.0 * theirs.share(),
            describe_difference(&batch_sizes(ours), &batch_sizes(theirs))
        )
        .expect("writing to a string cannot fail");
    }
    Ok(text)
}

/// Returns the batch sizes of each model's replicas, ascending.
fn batch_sizes(trial: &Trial) -> BTreeMap<&str, Vec<u32>> {
    let mut batches: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for replica in &trial.plan.replicas {
        let of_model = batches.entry(&replica.model).or_default();
        of_model.push(replica.batch_size);
        of_model.sort_unstable();
    }
    batches
}

/// Describes the models with different batch sizes.
fn describe_difference(
    ours: &BTreeMap<&str, Vec<u32>>,
    theirs: &BTreeMap<&str, Vec<u32>>,
) -> String {
    let models: BTreeSet<&&str> = ours.keys().chain(theirs.keys()).collect();
    let sizes = |batches: Option<&Vec<u32>>| {
        let sizes = batches.into_iter().flatten().map(u32::to_string);
        let text = sizes.collect::<Vec<_>>().join(" ");
        if text.is_empty() {
            "none".to_owned()
        } else {
            text
        }
    };
    let other = models
        .into_iter()
        .filter(|model| ours.get(**model) != theirs.get(**model));
    let texts = other.map(|model| {
        let (ours, theirs) = (sizes(ours.get(*model)), sizes(theirs.get(*model)));
        format!("{model} {ours} → {theirs}")
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() {
        "the same".to_owned()
    } else {
        texts.join(", ")
    }
}

/// Simulates planners in settings of the calibrated world with the thesis' router.
fn sweep_fixed_wait(
    runner: &Runner,
    settings: &[Setting],
    planners: &[Planner],
) -> anyhow::Result<Sweep> {
    let router = vec![DispatchOptions::from(Discipline::FixedWait)];
    let sweeps = runner.sweeps_in(&[Calibration::Calibrated], settings, planners, &[router])?;
    Ok(sweeps.into_iter().next().expect("one for one list"))
}

/// Formats the share within the SLO with the best planner in each setting, with four digits.
fn format_best_share(sweep: &Sweep, planners: &[&str]) -> String {
    let share = sweep.best_share(Calibration::Calibrated, planners, Discipline::FixedWait);
    share.map_or("–".to_owned(), |share| format!("{share:.4}"))
}

/// Returns a table with a row per latency scale: the shares of the three figures, and the goodput of `efficientnet_b7` on six GPUs.
fn scale_table(runner: &Runner) -> anyhow::Result<String> {
    let planners = THESIS_POLICIES.map(Planner::from_policy);
    let mut many_seeds = Runner::new(false);
    many_seeds.seeds = (1..=SEEDS).collect();
    let mut text = "| vision models take | 6.1 | 6.10 | 6.15 | efficientnet_b7, requests/s | seeds 1 to 5 |\n|---|---:|---:|---:|---:|---:|\n".to_owned();
    for scale in SCALES {
        let mut row = vec![format!("{scale:.2} times the profile")];
        for (_, settings) in figures() {
            let settings: Vec<Setting> = settings
                .into_iter()
                .map(|setting| setting.with_vision_scale(scale))
                .collect();
            row.push(format_best_share(
                &sweep_fixed_wait(runner, &settings, &planners)?,
                &THESIS_POLICIES,
            ));
        }
        let six = [Setting::with_gpus("6.1", 6).with_vision_scale(scale)];
        let usher = [Planner::from_file(USHER, "6.5-usher.json")];
        let sweep = sweep_fixed_wait(&many_seeds, &six, &usher)?;
        let trial = sweep.trial(0, USHER, Discipline::FixedWait);
        let goodput = trial.map(goodput_by_seed).unwrap_or_default();
        let (mean, deviation) = mean_and_deviation(&goodput);
        row.push(format!("{mean:.0} ± {deviation:.0}"));
        row.push(format!("{:.1}", mean_and_deviation(&goodput[..5]).0));
        writeln!(text, "| {} |", row.join(" | ")).expect("writing to a string cannot fail");
    }
    Ok(text)
}

fn goodput_by_seed(trial: &Trial) -> Vec<f64> {
    let models = trial.reports.iter().flat_map(|report| &report.models);
    models
        .filter(|model| model.name == EFFICIENTNET)
        .map(|model| model.goodput_rps)
        .collect()
}

/// Returns the mean and the sample standard deviation of at least two values.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

/// Returns a table with a row per choice among several optima.
fn tie_table(runner: &Runner) -> anyhow::Result<String> {
    let found = THESIS_POLICIES.map(Planner::from_policy);
    let small = THESIS_POLICIES.map(|name| Planner::from_policy(name).preferring_small_batches());
    let mut text =
        "| of equally good plans | 6.1 | 6.10 | 6.15 |\n|---|---:|---:|---:|\n".to_owned();
    for (name, planners) in [("the one found", found), ("small batches", small)] {
        let labels = planners.each_ref().map(|planner| planner.label.as_str());
        let mut row = vec![name.to_owned()];
        for (_, settings) in figures() {
            row.push(format_best_share(
                &sweep_fixed_wait(runner, &settings, &planners)?,
                &labels,
            ));
        }
        writeln!(text, "| {} |", row.join(" | ")).expect("writing to a string cannot fail");
    }
    Ok(text)
}

/// Returns a table of WSM-MILP's plan at 2000 requests/s with two batch sizes of vgg19.
fn vgg19_table(runner: &Runner) -> anyhow::Result<String> {
    let (_, settings) = figures().into_iter().nth(2).expect("6.15 is the third");
    let settings: Vec<Setting> = settings
        .into_iter()
        .filter(|setting| setting.label == "2000/s")
        .collect();
    let planners =
        [4, 8].map(|batch_size| Planner::from_policy("wsm-milp").with_batches("vgg19", batch_size));
    let sweep = sweep_fixed_wait(runner, &settings, &planners)?;
    let mut text =
        "| | expected goodput, requests/s | percent within the SLO |\n|---|---:|---:|\n".to_owned();
    for (i, setting) in settings.iter().enumerate() {
        for planner in &planners {
            let Some(trial) = sweep.trial(i, &planner.label, Discipline::FixedWait) else {
                continue;
            };
            writeln!(
                text,
                "| {}, {} | {:.2} | {:.1} |",
                setting.part,
                planner.label,
                trial.plan.predicted_goodput_rps,
                100.0 * trial.share()
            )
            .expect("writing to a string cannot fail");
        }
    }
    Ok(text)
}
