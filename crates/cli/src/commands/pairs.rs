//! `packhorse profile pairs`: how models slow each other on a device of this machine, measured. Asks no gateway.

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
use serde::Serialize;

use super::{
    driven::{DriveDevice, Driven, DrivenModel, Start, WorkerArgs},
    model_text,
};
use crate::{
    context::{Context, write_file},
    output::{self, number},
};

/// The most measurements of one call: they take a few seconds each.
const MAX_MEASUREMENTS: usize = 10_000;

#[derive(clap::Args)]
#[command(after_help = "\
Two workers of their own load a pair of models on the device. Each runs batches of made-up inputs for some seconds by
itself, then both at the same time; the median over the runs of the median latencies counts. SPEC.json is that of
`packhorse model register`. Shares are of a GPU's multiprocessors, which takes MPS, or of the CPU's threads.

The table has the columns model_a, model_b, batch_a, batch_b, share_a_pct, share_b_pct, latency_a_ms, latency_b_ms,
std_a_ms, std_b_ms, alone_a_ms and alone_b_ms. `packhorse profile import --pairs KIND` brings it to a gateway, and a
scenario names it under measured_pairs; from there `goodput` reads how models slow each other. `packhorse predict
--measured` compares a policy's model with it.

Examples:
  packhorse profile pairs resnet50.json=resnet50.pt bert.json=bert.pt --device cuda:0 --output pairs.csv
  packhorse profile pairs a.json=a.pt b.json=b.pt --batch-sizes 1,8 --shares 50/50,25/75 --device cuda:0 --output pairs.csv
  packhorse profile pairs a.json=a.pt b.json=b.pt c.json=c.pt --pair a,b --pair c,c --device cpu --json")]
pub(crate) struct PairsArgs {
    /// The models, each with its TorchScript or `.pt2` file
    #[arg(value_name = "SPEC.json=FILE", required = true)]
    models: Vec<ModelFiles>,
    /// A pair to measure, by the models' names; may be repeated [default: every model with every other]
    #[arg(long, value_name = "A,B")]
    pair: Vec<NamePair>,
    /// Rows of a batch: every combination of the two models' is measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    batch_sizes: Vec<u32>,
    /// Shares of the two in percent; 100/100 sets no limit
    #[arg(
        long,
        value_name = "A/B,…",
        value_delimiter = ',',
        default_value = "100/100"
    )]
    shares: Vec<SharePair>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// How long each measurement is
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Write the table as CSV
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
            let share: f64 = text.parse().map_err(|_| anyhow!("{text:?} is no number"))?;
            Ok::<_, anyhow::Error>(ComputeShare::new(share)?)
        };
        Ok(Self([share(a)?, share(b)?]))
    }
}

/// Two replicas that are to be measured beside each other.
struct Setting<'a> {
    models: [&'a DrivenModel; 2],
    batch_sizes: [u32; 2],
    shares: [ComputeShare; 2],
}

impl PairsArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        ensure!(
            (0.05..=60.0).contains(&self.seconds),
            "--seconds: expected 0.05 to 60, not {}",
            self.seconds
        );
        let worker = self.worker.program()?;
        self.check_shares()?;
        let mut models = Vec::new();
        for files in &self.models {
            models.push(DrivenModel::read(&files.spec, &files.artifact).await?);
        }
        let settings = self.settings(&models)?;
        let progress = output::spinner();
        let mut table = PairTable::default();
        for (done, setting) in settings.iter().enumerate() {
            let of = format!("{} of {}: {}", done + 1, settings.len(), setting.describe());
            let pair = self.measure(&worker, setting, &progress, &of);
            table.pairs.push(pair.with_context(|| setting.describe())?);
            if let Some(file) = &self.output {
                // After every pair: what was measured is not lost when something goes wrong later.
                write_file(file, table.to_csv().as_bytes())?;
            }
        }
        progress.finish_and_clear();
        print(context, &table)
    }

    /// Shares of a GPU without MPS would be measured as none, silently.
    fn check_shares(&self) -> anyhow::Result<()> {
        let whole = |pair: &SharePair| pair.0 == [ComputeShare::WHOLE; 2];
        if self.worker.device == DriveDevice::Cpu || self.shares.iter().all(whole) {
            return Ok(());
        }
        let folder = env::var_os("CUDA_MPS_PIPE_DIRECTORY");
        let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
        ensure!(
            folder.join("control").exists(),
            "--shares: a share of a GPU takes MPS, and no daemon has its pipes in {}: start nvidia-cuda-mps-control -d, or \
             measure with --shares 100/100",
            folder.display()
        );
        Ok(())
    }

    fn settings<'a>(&self, models: &'a [DrivenModel]) -> anyhow::Result<Vec<Setting<'a>>> {
        let named = |name: &ModelName| {
            let found = models.iter().find(|of| of.program.model.name == *name);
            found.with_context(|| format!("--pair: no model {name} is given"))
        };
        let pairs: Vec<[&DrivenModel; 2]> = if !self.pair.is_empty() {
            let pair = |NamePair([a, b]): &NamePair| Ok([named(a)?, named(b)?]);
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
            "{} pairs to measure are over the limit of {MAX_MEASUREMENTS}: choose some with --pair",
            settings.len()
        );
        Ok(settings)
    }

    fn measure(
        &self,
        worker: &Path,
        setting: &Setting<'_>,
        progress: &ProgressBar,
        what: &str,
    ) -> anyhow::Result<[PairMember; 2]> {
        progress.set_message(format!("{what}: loading"));
        let start = |i: usize| {
            Driven::start(&Start {
                worker,
                under: Vec::new(),
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
            progress.set_message(format!("{what}: run {run} of {}", self.runs));
            for (worker, ran) in workers.iter_mut().zip(&mut alone) {
                worker.tell(&self.command(longest))?;
                ran.push(self.ran(worker)?);
            }
            longest = [&alone[0], &alone[1]]
                .map(|ran| median(ran.iter().map(|ran| ran.median_ms)))
                .into_iter()
                .fold(0.0, f64::max);
            let command = self.command(longest);
            for worker in &mut workers {
                worker.tell(&command)?;
            }
            for (worker, ran) in workers.iter_mut().zip(&mut together) {
                ran.push(self.ran(worker)?);
            }
        }
        for worker in workers {
            worker.finish()?;
        }
        let member = |i: usize| {
            let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let of = |ran: &[Ran], value: fn(&Ran) -> f64| millis(median(ran.iter().map(value)));
            PairMember {
                model: setting.models[i].program.model.clone(),
                batch_size: setting.batch_sizes[i],
                compute_share: setting.shares[i],
                latency: of(&together[i], |ran| ran.median_ms),
                std: Some(of(&together[i], |ran| ran.std_ms)),
                alone: Some(of(&alone[i], |ran| ran.median_ms)),
            }
        };
        Ok([member(0), member(1)])
    }

    /// The two do not begin at the same moment, and a batch that ends late is still company: before and after the window both run.
    fn command(&self, longest_batch_ms: f64) -> MeasureCommand {
        let margin = (100.0 * self.seconds).max(50.0).max(2.0 * longest_batch_ms);
        MeasureCommand::Run {
            before_ms: margin as u64,
            window_ms: (1e3 * self.seconds) as u64,
            after_ms: margin as u64,
        }
    }

    fn ran(&self, worker: &mut Driven) -> anyhow::Result<Ran> {
        match worker.reply()? {
            MeasureReply::Ran { batches: 0, .. } => bail!(
                "no batch began within the {} s of a measurement: raise --seconds",
                self.seconds
            ),
            MeasureReply::Ran {
                median_ms, std_ms, ..
            } => Ok(Ran { median_ms, std_ms }),
            other => bail!("the worker says {other:?}"),
        }
    }
}

/// One run of batches.
struct Ran {
    median_ms: f64,
    std_ms: f64,
}

impl Setting<'_> {
    fn describe(&self) -> String {
        let side = |i: usize| {
            let id = &self.models[i].program.model;
            format!(
                "{} at {}",
                model_text(&id.name, id.version),
                self.batch_sizes[i]
            )
        };
        let [a, b] = self.shares.map(|share| number(share.get()));
        format!("{} beside {}, {a}/{b} %", side(0), side(1))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A member as programs read it.
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
        let alone_ms = member.alone.map(millis);
        let latency_ms = millis(member.latency);
        Self {
            model: model_text(&member.model.name, member.model.version),
            batch_size: member.batch_size,
            compute_share_pct: member.compute_share.get(),
            alone_ms,
            latency_ms,
            std_ms: member.std.map(millis),
            slowdown: alone_ms.map(|alone| latency_ms / alone),
        }
    }
}

fn print(context: &Context, table: &PairTable) -> anyhow::Result<()> {
    let pairs = table.pairs.iter();
    let reports: Vec<[MemberReport; 2]> = pairs
        .map(|[a, b]| [MemberReport::new(a), MemberReport::new(b)])
        .collect();
    if context.json() {
        return output::json(&reports);
    }
    let mut shown = output::table(&[
        "MODEL",
        "BATCH",
        "SHARE %",
        "BESIDE",
        "BATCH",
        "SHARE %",
        "ALONE MS",
        "TOGETHER MS",
        "SLOWDOWN",
    ]);
    for [a, b] in &reports {
        for (of, beside) in [(a, b), (b, a)] {
            let dash = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
            shown.add_row([
                of.model.clone(),
                of.batch_size.to_string(),
                number(of.compute_share_pct),
                beside.model.clone(),
                beside.batch_size.to_string(),
                number(beside.compute_share_pct),
                dash(of.alone_ms),
                format!("{:.2}", of.latency_ms),
                dash(of.slowdown),
            ]);
        }
    }
    Ok(output::table_or(&shown, "no pairs")?)
}
