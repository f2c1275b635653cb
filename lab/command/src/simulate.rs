//! `packhorse-lab simulate`: runs plans in a simulated cluster and compares them.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};

use indicatif::ProgressBar;
use packhorse_cluster::{Discipline, PlannedReplica, Time};
use packhorse_figures::runs;
use packhorse_simulator::{
    AutoscaleReport, DispatchOptions, Estimate, PlanReport, Replanning, Report, RunOptions,
    RunTrace, ScalingRule, Scenario, Timeline, Totals, reports_to_csv, simulate_with,
};
use packhorse_terminal::{
    context::Context,
    files::write_file,
    output::{self, format_number},
    policy_options::PolicyOptionArgs,
};

use super::{
    model_table::{RATE_HEADERS, print_models},
    plot::PlotFile,
    scenario::{self, PolicyName},
};

#[derive(clap::Args)]
#[command(after_help = "\
Repeat --policy, --discipline or --seed to compare several runs.

Offered load and goodput count the requests that arrive in the scenario's window, per second of the \
window. Throughput counts the answers to these requests, per second until the last answer, so that it \
can be below the goodput.

--csv prints one header, and for each run a row per model and a row for the sums, whose model is \
(total). The cell of an unknown value is empty.

With --replan the control plane of the gateway runs, too: it measures rates, notices lost nodes, and asks \
the policy for a new plan when the gateway would; --replan-every asks at an interval. The first plan is \
for the scenario's rates, or that of --plan. A new plan starts its replicas beside the old ones if memory \
allows; each is ready after its model's load_ms. Replicas of both plans keep running. A new plan is \
adopted where its gain is worth the cost of moving to it.

In a scenario with [autoscale], --replan and --replan-every also add and remove devices: every 15 s they \
search, as the gateway does for packhorse_devices_needed, for the smallest cluster for the rates that are \
forecast for the time at which a new node serves. Models are planned with their measured rates.

--timeline writes the requests that came due in each second, by model and by what became of them, and the \
devices of an autoscaler.

Examples:
  packhorse-lab simulate --scenario thesis.toml --policy usher
  packhorse-lab simulate --scenario thesis.toml --policy usher --policy first-fit --discipline fixed-wait --discipline deadline
  packhorse-lab simulate --scenario thesis.toml --plan plan.json --seed 1 --seed 2 --seed 3 --json
  packhorse-lab simulate --scenario thesis.toml --policy usher --policy first-fit --csv > runs.csv
  packhorse-lab simulate --scenario scenarios/ramp/evening.toml --policy nexus --replan-every 2
  packhorse-lab simulate --scenario scenarios/ramp/evening.toml --replan --timeline evening.csv
  packhorse-lab simulate --scenario scenarios/azure/ramp.toml --replan --json
  packhorse-lab simulate --scenario scenarios/thesis/6.10-gpus-4.toml --trace run.json --trace-length 5
  packhorse-lab simulate --scenario thesis.toml --policy usher --policy ao-milp --plot runs.svg")]
pub(crate) struct SimulateArgs {
    /// Scenario: devices, models, rates and SLOs
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Placement policy; may be repeated [default: that of the scenario, else goodput]
    #[arg(long, value_name = "POLICY")]
    policy: Vec<PolicyName>,
    #[command(flatten)]
    options: PolicyOptionArgs,
    /// Run this plan, in the form that `packhorse plan --json` prints, in place of a policy's; with --replan
    /// the policy makes the later ones
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Dispatch discipline; may be repeated [default: that of the scenario, else deadline]
    #[arg(long, value_name = "DISCIPLINE")]
    discipline: Vec<Discipline>,
    /// Seed of all randomness; may be repeated
    #[arg(long, value_name = "N", default_value = "1")]
    seed: Vec<u64>,
    /// Let the policy plan again every S simulated seconds, from the observed rates and slowdowns
    #[arg(long, value_name = "S", value_parser = parse_period)]
    replan_every: Option<Duration>,
    /// Let the policy plan again when the gateway would ask it: when nodes or models come or go, or rates or
    /// batch times change
    #[arg(long, conflicts_with = "replan_every")]
    replan: bool,
    /// Write the numbers of requests by second, model and outcome of a single run into this file, as CSV
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print results as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Draw goodput, latencies and stages into this file, and for a single run the batch sizes over time
    #[arg(long, value_name = "F.svg")]
    plot: Option<PlotFile>,
    /// Write the requests and batches of a single run over time into this file, which Perfetto (ui.perfetto.dev) opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Trace the requests that arrive in the first S simulated seconds after the warm-up
    #[arg(long, value_name = "S", value_parser = parse_period, default_value = "10", requires = "trace")]
    trace_length: Duration,
}

fn parse_period(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (1e-3..=1e7).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.001 to 1e7".to_owned()),
    }
}

/// A plan with a discipline.
struct Trial {
    /// The policy of the plan, or of those that follow one from a file.
    policy: PolicyName,
    plan: PlanReport,
    replicas: Vec<PlannedReplica>,
    discipline: Discipline,
}

impl SimulateArgs {
    pub(super) fn run(&self, context: &Context) -> anyhow::Result<()> {
        let scenario = scenario::read_scenario(&self.scenario)?;
        let mut reports = Vec::new();
        let trials = self.trials(&scenario)?;
        let runs = trials.len() * self.seed.len();
        for (flag, given) in [
            ("--trace", self.trace.is_some()),
            ("--timeline", self.timeline.is_some()),
        ] {
            ensure!(
                !given || runs == 1,
                "{flag}: expected a single run; the policies, disciplines and seeds make {runs}"
            );
        }
        for trial in trials {
            for &seed in &self.seed {
                reports.push(self.simulate(&scenario, &trial, seed)?);
            }
        }
        if let Some(plot) = &self.plot {
            plot.write(&runs::figure(&scenario, &reports))?;
        }
        if self.csv {
            return Ok(output::print_bytes(reports_to_csv(&reports).as_bytes())?);
        }
        match reports.as_slice() {
            [report] if context.json() => output::print_json(report),
            reports if context.json() => output::print_json(&reports),
            [report] => print_run(report),
            reports => print_comparison(reports, &self.seed),
        }
    }

    /// Returns true if the policy plans again during a run.
    fn replans(&self) -> bool {
        self.replan || self.replan_every.is_some()
    }

    /// Returns every combination of a plan and a discipline.
    fn trials(&self, scenario: &Scenario) -> anyhow::Result<Vec<Trial>> {
        let policies = if self.policy.is_empty() {
            vec![scenario::default_policy(scenario)?]
        } else {
            self.policy.clone()
        };
        let disciplines = if self.discipline.is_empty() {
            vec![scenario::default_discipline(scenario)]
        } else {
            self.discipline.clone()
        };
        let mut trials = Vec::new();
        if let Some(path) = &self.plan {
            let replicas = scenario::read_plan(scenario, path)?;
            let report = PlanReport::from_replicas(scenario, &replicas);
            ensure!(
                self.policy.is_empty() || self.replans(),
                "--policy: --plan is in its place, unless the run plans again (--replan, --replan-every)"
            );
            let [policy] = policies.as_slice() else {
                bail!("--policy: expected one policy beside --plan");
            };
            trials.extend(disciplines.iter().map(|discipline| Trial {
                policy: policy.clone(),
                plan: report.clone(),
                replicas: replicas.clone(),
                discipline: *discipline,
            }));
            return Ok(trials);
        }
        for policy in &policies {
            for &discipline in &disciplines {
                let (replicas, plan) = scenario::plan(scenario, policy, &self.options, discipline)?;
                trials.push(Trial {
                    policy: policy.clone(),
                    plan,
                    replicas,
                    discipline,
                });
            }
        }
        Ok(trials)
    }

    /// Runs a trial with a seed.
    fn simulate(&self, scenario: &Scenario, trial: &Trial, seed: u64) -> anyhow::Result<Report> {
        let Trial {
            policy,
            plan,
            replicas,
            discipline,
        } = trial;
        let (plan, discipline) = (plan.clone(), *discipline);
        let simulation = &scenario.simulation;
        let length = simulation.warmup + simulation.window;
        let bar = ProgressBar::new(u64::try_from(length.as_millis())?);
        let mut progress = |now: Time| bar.set_position(now.as_nanos() / 1_000_000);
        let (mut planner, mut search);
        let estimate = packhorse_placement::estimate as Estimate;
        let replanning = if self.replans() {
            planner = scenario::replanner(scenario, policy, &self.options)?;
            let replanning = match self.replan_every {
                Some(every) => Replanning::new(every, Some(estimate), &mut planner),
                None => Replanning::at_changes(estimate, &mut planner),
            };
            Some(if scenario.autoscale.is_some() {
                search = scenario::cluster_search(scenario, policy, &self.options)?;
                replanning.autoscaling(ScalingRule::DevicesNeeded(&mut search))
            } else {
                replanning
            })
        } else {
            None
        };
        let from = Time::ZERO + simulation.warmup;
        let mut trace = RunTrace::new(from, from + self.trace_length);
        let mut timeline = Timeline::default();
        let options = RunOptions {
            dispatch: DispatchOptions::from(discipline),
            replanning,
            trace: self.trace.is_some().then_some(&mut trace),
            timeline: self.timeline.is_some().then_some(&mut timeline),
            stop: None,
        };
        let report = simulate_with(scenario, plan, replicas, seed, options, &mut progress);
        bar.finish_and_clear();
        let report = report?;
        if let Some(file) = &self.trace {
            write_trace(file, trace, scenario)?;
        }
        if let Some(file) = &self.timeline {
            write_file(file, timeline.to_csv(scenario).as_bytes())?;
        }
        Ok(report)
    }
}

fn write_trace(file: &Path, trace: RunTrace, scenario: &Scenario) -> anyhow::Result<()> {
    let requests = trace.requests();
    let mut failure = None;
    let mut out = fs::File::create(file).with_context(|| format!("create {}", file.display()))?;
    trace.write(scenario, |piece| match out.write_all(&piece) {
        Ok(()) => true,
        Err(e) => {
            failure = Some(e);
            false
        }
    });
    if let Some(e) = failure {
        return Err(e).with_context(|| format!("write {}", file.display()));
    }
    output::note(format_args!(
        "note: {} has {requests} requests; open it at https://ui.perfetto.dev",
        file.display()
    ));
    Ok(())
}

fn print_run(report: &Report) -> anyhow::Result<()> {
    output::print_line(format!(
        "seed {}: {}, planned by {}, dispatched by {}",
        report.seed, report.scenario, report.plan.policy, report.discipline
    ))?;
    let totals = report.totals;
    print_models(&report.models, totals)?;
    for family in &report.families {
        output::print_line(format!(
            "family {}: {:.2} of {:.2} requests/s within the SLO, {:.2} of them right at a mean accuracy of {} %",
            family.name,
            family.goodput_rps,
            family.offered_rps,
            family.accurate_goodput_rps,
            output::format_number_or_dash(family.accuracy_pct),
        ))?;
    }
    if let Some(replanning) = &report.replanning {
        output::print_line(format!(
            "replanned {} times, every {} s: {} new plans, {} not worth their cost, {} times without a plan; \
             {} replicas started, {} stopped",
            replanning.asked,
            replanning.every_s,
            replanning.changed,
            replanning.rejected,
            replanning.unanswered,
            replanning.started,
            replanning.stopped
        ))?;
    }
    if let Some(autoscale) = &report.autoscale {
        print_autoscale(autoscale)?;
    }
    print_lost_requests(
        report
            .models
            .iter()
            .map(|model| (model.name.as_str(), model.lost)),
        totals,
    )
}

/// Prints how many devices there were.
fn print_autoscale(autoscale: &AutoscaleReport) -> anyhow::Result<()> {
    let have = autoscale.over_time.iter().map(|counts| counts.have);
    output::print_line(format!(
        "{} to {} devices of {}: {:.2} device-hours",
        have.clone().min().unwrap_or_default(),
        have.max().unwrap_or_default(),
        autoscale.kind,
        autoscale.device_hours
    ))?;
    Ok(())
}

/// Prints how many requests were lost with failed workers, if any.
fn print_lost_requests<'a>(
    models: impl Iterator<Item = (&'a str, u64)>,
    totals: Totals,
) -> anyhow::Result<()> {
    if totals.lost == 0 {
        return Ok(());
    }
    let by_model: Vec<String> = models
        .filter(|(_, lost)| *lost > 0)
        .map(|(name, lost)| format!("{lost} of {name}"))
        .collect();
    let (lost, by_model) = (totals.lost, by_model.join(", "));
    Ok(output::print_line(format!(
        "{lost} requests were lost with their workers: {by_model}"
    ))?)
}

fn print_comparison(reports: &[Report], seeds: &[u64]) -> anyhow::Result<()> {
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let scenario = reports
        .first()
        .map_or("", |report| report.scenario.as_str());
    output::print_line(format!("seed {}: {scenario}", seeds.join(", ")))?;
    let header = [
        "POLICY",
        "DISCIPLINE",
        "SEED",
        RATE_HEADERS[0],
        RATE_HEADERS[1],
        RATE_HEADERS[2],
        "GOODPUT\n% OF OFFERED",
        "DROPPED",
        "LOST",
        "NEW PLANS",
    ];
    let replans = reports.iter().any(|report| report.replanning.is_some());
    let header = &header[..header.len() - usize::from(!replans)];
    let mut table = output::new_table(header);
    for report in reports {
        let totals = report.totals;
        let mut row = vec![
            report.plan.policy.clone(),
            report.discipline.to_string(),
            report.seed.to_string(),
        ];
        row.extend(
            [
                totals.offered_rps,
                totals.throughput_rps,
                totals.goodput_rps,
            ]
            .map(format_number),
        );
        row.push(format!(
            "{:.1}",
            100.0 * totals.goodput_rps / totals.offered_rps.max(f64::MIN_POSITIVE)
        ));
        row.extend([totals.dropped, totals.lost].map(|count| count.to_string()));
        row.extend(
            report
                .replanning
                .map(|replanning| replanning.changed.to_string()),
        );
        table.add_row(row);
    }
    Ok(output::print_line(output::table_text(&table))?)
}
