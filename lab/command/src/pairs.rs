//! `packhorse-lab profile pairs`: measures how models slow each other on a device of this machine.

use std::{
    env,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use indicatif::ProgressBar;
use packhorse_api::local_worker::{MeasureCommand, MeasureReply};
use packhorse_cluster::{ComputeShare, ModelName};
use packhorse_contention::{PairMember, PairTable};
use packhorse_terminal::{
    context::Context,
    files::write_file,
    output::{self, format_number},
    versioned_name,
};
use serde::Serialize;

use super::local_worker::{LocalDevice, LocalModel, LocalWorker, LocalWorkerOptions, WorkerArgs};

/// The largest number of measurements of one call. Each takes a few seconds.
const MAX_MEASUREMENTS: usize = 10_000;

#[derive(clap::Args)]
#[command(after_help = "\
The command starts two workers that load a pair of models on the device. Each runs batches of synthetic inputs for some seconds \
alone, then both run at the same time. A latency of the table is the median over the runs of the runs' medians. SPEC.json is that \
of `packhorse model register`. Shares are shares of a GPU's multiprocessors, which requires MPS, or of the CPU's threads.

The table has the columns model_a, model_b, batch_a, batch_b, share_a_pct, share_b_pct, latency_a_ms, latency_b_ms, \
std_a_ms, std_b_ms, alone_a_ms and alone_b_ms. `packhorse profile import --pairs KIND` imports it into a gateway, and a scenario \
names it under measured_pairs; the policy `goodput` learns from it how models slow each other. `packhorse-lab predict --measured` \
compares the predictions of a policy with it.

Examples:
  packhorse-lab profile pairs resnet50.json=resnet50.pt bert.json=bert.pt --device cuda:0 --output pairs.csv
  packhorse-lab profile pairs a.json=a.pt b.json=b.pt --batch-sizes 1,8 --shares 50/50,25/75 --device cuda:0 --output pairs.csv
  packhorse-lab profile pairs a.json=a.pt b.json=b.pt c.json=c.pt --pair a,b --pair c,c --device cpu --json")]
pub(crate) struct PairsArgs {
    /// Models, each with its TorchScript or `.pt2` file
    #[arg(value_name = "SPEC.json=FILE", required = true)]
    models: Vec<ModelFiles>,
    /// Pair to measure, by the models' names; may be repeated [default: every pair of different models, or a single model with itself]
    #[arg(long, value_name = "A,B")]
    pair: Vec<NamePair>,
    /// Batch sizes: every combination of a size for each of the two models is measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    batch_sizes: Vec<u32>,
    /// Compute shares of the two models in percent; 100/100 sets no limit
    #[arg(
        long,
        value_name = "A/B,…",
        value_delimiter = ',',
        default_value = "100/100"
    )]
    shares: Vec<SharePair>,
    /// Number of times that each pair is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Length of each measurement in seconds, 0.05 to 60
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Write the table to this file, as CSV
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct ModelFiles {
    spec: PathBuf,
    artifact: PathBuf,
}

impl FromStr for ModelFiles {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (spec, artifact) = text.split_once('=').context("expected SPEC.json=FILE")?;
        Ok(Self {
            spec: spec.into(),
            artifact: artifact.into(),
        })
    }
}

#[derive(Clone, Debug)]
struct NamePair([ModelName; 2]);

impl FromStr for NamePair {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (a, b) = text.split_once(',').context("expected two names, A,B")?;
        Ok(Self([a.parse()?, b.parse()?]))
    }
}

#[derive(Clone, Copy, Debug)]
struct SharePair([ComputeShare; 2]);

impl FromStr for SharePair {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (a, b) = text
            .split_once('/')
            .context("expected A/B, such as 50/50")?;
        let share = |text: &str| {
            let share: f64 = text
                .parse()
                .map_err(|_| anyhow!("{text:?} is not a number"))?;
            Ok::<_, anyhow::Error>(ComputeShare::new(share)?)
        };
        Ok(Self([share(a)?, share(b)?]))
    }
}

/// Two replicas that are measured together.
struct Setting<'a> {
    models: [&'a LocalModel; 2],
    batch_sizes: [u32; 2],
    shares: [ComputeShare; 2],
}

impl PairsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        ensure!(
            (0.05..=60.0).contains(&self.seconds),
            "--seconds must be from 0.05 to 60, not {}",
            self.seconds
        );
        let worker = self.worker.program.path()?;
        self.check_shares()?;
        let mut models = Vec::new();
        for files in &self.models {
            models.push(LocalModel::read(&files.spec, &files.artifact).await?);
        }
        let settings = self.settings(&models)?;
        let progress = output::spinner();
        let mut table = PairTable::default();
        for (done, setting) in settings.iter().enumerate() {
            let label = format!("{} of {}: {}", done + 1, settings.len(), setting.describe());
            let pair = self.measure(&worker, setting, &progress, &label);
            table.pairs.push(pair.with_context(|| setting.describe())?);
            if let Some(file) = &self.output {
                // Written after every pair, so that a later failure does not lose the measurements.
                write_file(file, table.to_csv().as_bytes())?;
            }
        }
        progress.finish_and_clear();
        print_pairs(context, &table)
    }

    /// Fails if shares of a GPU are given and MPS does not run: the shares would have no effect.
    fn check_shares(&self) -> anyhow::Result<()> {
        let is_whole = |pair: &SharePair| pair.0 == [ComputeShare::WHOLE; 2];
        if self.worker.device == LocalDevice::Cpu || self.shares.iter().all(is_whole) {
            return Ok(());
        }
        let folder = env::var_os("CUDA_MPS_PIPE_DIRECTORY");
        let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
        ensure!(
            folder.join("control").exists(),
            "--shares: shares of a GPU require MPS, and {} has no pipe of an MPS daemon: start one with nvidia-cuda-mps-control -d, \
             or measure with --shares 100/100",
            folder.display()
        );
        Ok(())
    }

    /// Returns all settings to measure.
    fn settings<'a>(&self, models: &'a [LocalModel]) -> anyhow::Result<Vec<Setting<'a>>> {
        let find_model = |name: &ModelName| {
            let found = models
                .iter()
                .find(|model| model.program.model.name == *name);
            found.with_context(|| format!("--pair: there is no argument for the model {name}"))
        };
        let pairs: Vec<[&LocalModel; 2]> = if !self.pair.is_empty() {
            let pair = |NamePair([a, b]): &NamePair| Ok([find_model(a)?, find_model(b)?]);
            self.pair.iter().map(pair).collect::<anyhow::Result<_>>()?
        } else if let [only] = models {
            vec![[only, only]]
        } else {
            let later = |i: usize| models[i + 1..].iter();
            let pairs = models.iter().enumerate();
            pairs
                .flat_map(|(i, a)| later(i).map(move |b| [a, b]))
                .collect()
        };
        let mut settings = Vec::new();
        for models in pairs {
            for a in &self.batch_sizes {
                for b in &self.batch_sizes {
                    settings.extend(self.shares.iter().map(|shares| Setting {
                        models,
                        batch_sizes: [*a, *b],
                        shares: shares.0,
                    }));
                }
            }
        }
        ensure!(
            settings.len() <= MAX_MEASUREMENTS,
            "{} measurements are over the limit of {MAX_MEASUREMENTS}: select pairs with --pair",
            settings.len()
        );
        Ok(settings)
    }

    fn measure(
        &self,
        worker: &Path,
        setting: &Setting<'_>,
        progress: &ProgressBar,
        label: &str,
    ) -> anyhow::Result<[PairMember; 2]> {
        progress.set_message(format!("{label}: loading"));
        let start = |i: usize| {
            LocalWorker::start(&LocalWorkerOptions {
                worker,
                profiler: Vec::new(),
                model: setting.models[i],
                device: &self.worker.device,
                batch_size: setting.batch_sizes[i],
                share: setting.shares[i],
            })
        };
        let mut workers = [start(0)?, start(1)?];
        for worker in &mut workers {
            worker.wait_until_ready()?;
        }
        let mut alone = [Vec::new(), Vec::new()];
        let mut together = [Vec::new(), Vec::new()];
        let mut longest = 0.0_f64;
        for run in 1..=self.runs {
            progress.set_message(format!("{label}: run {run} of {}", self.runs));
            for (worker, runs) in workers.iter_mut().zip(&mut alone) {
                worker.send(&self.run_command(longest))?;
                runs.push(self.receive_run(worker)?);
            }
            longest = [&alone[0], &alone[1]]
                .map(|runs| median(runs.iter().map(|run| run.median_ms)))
                .into_iter()
                .fold(0.0, f64::max);
            let command = self.run_command(longest);
            for worker in &mut workers {
                worker.send(&command)?;
            }
            for (worker, runs) in workers.iter_mut().zip(&mut together) {
                runs.push(self.receive_run(worker)?);
            }
        }
        for worker in workers {
            worker.finish()?;
        }
        let member = |i: usize| {
            let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let median_of =
                |runs: &[Run], value: fn(&Run) -> f64| millis(median(runs.iter().map(value)));
            PairMember {
                model: setting.models[i].program.model.clone(),
                batch_size: setting.batch_sizes[i],
                compute_share: setting.shares[i],
                latency: median_of(&together[i], |run| run.median_ms),
                latency_std: Some(median_of(&together[i], |run| run.std_ms)),
                solo_latency: Some(median_of(&alone[i], |run| run.median_ms)),
            }
        };
        Ok([member(0), member(1)])
    }

    /// Returns the command for one run. The workers do not start at the same moment and end at different ones, so that both run
    /// batches before and after the measured window.
    fn run_command(&self, longest_batch_ms: f64) -> MeasureCommand {
        let margin = (100.0 * self.seconds).max(50.0).max(2.0 * longest_batch_ms);
        MeasureCommand::Run {
            before_ms: margin as u64,
            window_ms: (1e3 * self.seconds) as u64,
            after_ms: margin as u64,
        }
    }

    fn receive_run(&self, worker: &mut LocalWorker) -> anyhow::Result<Run> {
        match worker.receive()? {
            MeasureReply::Ran { batches: 0, .. } => bail!(
                "no batch began within the {} s of a measurement: increase --seconds",
                self.seconds
            ),
            MeasureReply::Ran {
                median_ms, std_ms, ..
            } => Ok(Run { median_ms, std_ms }),
            other => bail!("the worker sent an unexpected reply: {other:?}"),
        }
    }
}

/// The latencies of one run, in milliseconds.
struct Run {
    median_ms: f64,
    std_ms: f64,
}

impl Setting<'_> {
    fn describe(&self) -> String {
        let side = |i: usize| {
            let id = &self.models[i].program.model;
            format!(
                "{} at {}",
                versioned_name(&id.name, id.version),
                self.batch_sizes[i]
            )
        };
        let [a, b] = self.shares.map(|share| format_number(share.get()));
        format!("{} with {}, shares {a}/{b} %", side(0), side(1))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A member of a pair as JSON.
#[derive(Serialize)]
struct MemberReport {
    model: String,
    batch_size: u32,
    compute_share_pct: f64,
    alone_ms: Option<f64>,
    latency_ms: f64,
    std_ms: Option<f64>,
    slowdown: Option<f64>,
}

impl MemberReport {
    fn new(member: &PairMember) -> Self {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let alone_ms = member.solo_latency.map(millis);
        let latency_ms = millis(member.latency);
        Self {
            model: versioned_name(&member.model.name, member.model.version),
            batch_size: member.batch_size,
            compute_share_pct: member.compute_share.get(),
            alone_ms,
            latency_ms,
            std_ms: member.latency_std.map(millis),
            slowdown: alone_ms.map(|alone| latency_ms / alone),
        }
    }
}

fn print_pairs(context: &Context, table: &PairTable) -> anyhow::Result<()> {
    let pairs = table.pairs.iter();
    let reports: Vec<[MemberReport; 2]> = pairs
        .map(|[a, b]| [MemberReport::new(a), MemberReport::new(b)])
        .collect();
    if context.json() {
        return output::print_json(&reports);
    }
    let mut shown = output::new_table(&[
        "MODEL",
        "BATCH",
        "SHARE %",
        "WITH",
        "BATCH",
        "SHARE %",
        "ALONE MS",
        "TOGETHER MS",
        "SLOWDOWN",
    ]);
    for [a, b] in &reports {
        for (member, other) in [(a, b), (b, a)] {
            let dash = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
            shown.add_row([
                member.model.clone(),
                member.batch_size.to_string(),
                format_number(member.compute_share_pct),
                other.model.clone(),
                other.batch_size.to_string(),
                format_number(other.compute_share_pct),
                dash(member.alone_ms),
                format!("{:.2}", member.latency_ms),
                dash(member.slowdown),
            ]);
        }
    }
    Ok(output::print_table(&shown, "no pairs")?)
}
