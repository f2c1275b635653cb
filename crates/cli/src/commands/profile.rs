//! `packhorse profile`: what was measured of models.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use packhorse_cluster::{
    ByteCount, DeviceKind, ModelId, ModelName, Percent, ProfileRow, ProfileTable,
};
use packhorse_contention::PairTable;
use packhorse_kernels::{KernelProfile, KernelTable};
use serde::Serialize;

use super::{
    kernel_figure, kernels::KernelsArgs, model_text, pairs::PairsArgs, record::RecordArgs,
};
use crate::{
    context::{Context, read_text, write_file},
    output::{self, number, number_or_dash},
    plot::PlotFile,
};

#[derive(clap::Subcommand)]
#[command(
    after_help = "Examples:\n  packhorse profile show minilm\n  packhorse profile export profiles.csv\n  packhorse profile import profiles.csv\n  packhorse profile kernels batch.json\n  packhorse profile pairs a.json=a.pt b.json=b.pt --output pairs.csv"
)]
pub(crate) enum ProfileCommand {
    /// Show latency, memory and occupancy per batch size
    Show(ShowArgs),
    /// Write all profiles as CSV
    #[command(
        after_help = "Examples:\n  packhorse profile export > profiles.csv\n  packhorse profile export profiles.csv\n  packhorse profile export --pairs T4 pairs.csv"
    )]
    Export {
        /// Where to [default: standard output]
        file: Option<PathBuf>,
        /// Instead of profiles, the pairs that were measured on this kind of device
        #[arg(long, value_name = "KIND")]
        pairs: Option<DeviceKind>,
    },
    /// Read profiles from CSV, in place of what is there for the same model and device kind
    #[command(after_help = "\
The columns are model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,
achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct; a cell that is not known is empty. With --pairs the file
is one that `packhorse profile pairs --output` wrote; `goodput` reads there how models slow each other.

Examples:
  packhorse profile import profiles/v100-thesis.csv
  packhorse profile import --pairs V100-SXM2-16GB pairs.csv")]
    Import {
        /// The CSV file
        file: PathBuf,
        /// It has no profiles but pairs, measured on this kind of device; in place of what is there for the kind
        #[arg(long, value_name = "KIND")]
        pairs: Option<DeviceKind>,
    },
    /// Work out occupancy and SM utilisation of the kernels that torch.profiler recorded of a batch
    Kernels(KernelsArgs),
    /// Record the kernels of a batch on this machine
    Record(RecordArgs),
    /// Measure on this machine how models slow each other that share a device
    Pairs(PairsArgs),
}

#[derive(clap::Args)]
#[command(after_help = "\
The estimated achieved occupancy is the highest of kernels that overlap, and the mean weighted by duration; SM
utilisation is a mean too. A CPU has none. --plot draws both over the time of a batch, for every batch size whose kernels
were recorded when the model was measured.

Examples:
  packhorse profile show
  packhorse profile show minilm --json
  packhorse profile show resnet50 --plot kernels.svg --batch-size 4")]
pub(crate) struct ShowArgs {
    /// Only of this model
    model: Option<ModelName>,
    /// Also draw occupancy and SM utilisation of the model's kernels over time
    #[arg(long, value_name = "F.svg|F.png", requires = "model")]
    plot: Option<PlotFile>,
    /// Draw this batch size only; may be repeated
    #[arg(long, value_name = "N", requires = "plot")]
    batch_size: Vec<u32>,
    /// Draw this kind of device only
    #[arg(long, value_name = "KIND", requires = "plot")]
    device_kind: Option<DeviceKind>,
}

/// A row as programs read it: the CSV contract's names.
#[derive(Serialize)]
struct Row {
    model: String,
    device_kind: DeviceKind,
    batch_size: u32,
    compute_share_pct: f64,
    latency_ms: f64,
    latency_p99_ms: Option<f64>,
    memory_mib: Option<f64>,
    achieved_occupancy_pct: Option<f64>,
    mean_occupancy_pct: Option<f64>,
    sm_utilization_pct: Option<f64>,
}

impl Row {
    fn new(model: &ModelId, kind: &DeviceKind, row: &ProfileRow) -> Self {
        Self {
            model: model_text(&model.name, model.version),
            device_kind: kind.clone(),
            batch_size: row.batch_size,
            compute_share_pct: row.compute_share.get(),
            latency_ms: row.latency.as_secs_f64() * 1e3,
            latency_p99_ms: row.latency_p99.map(|latency| latency.as_secs_f64() * 1e3),
            memory_mib: row.memory.map(ByteCount::as_mib_f64),
            achieved_occupancy_pct: row.achieved_occupancy.map(Percent::get),
            mean_occupancy_pct: row.mean_occupancy.map(Percent::get),
            sm_utilization_pct: row.sm_utilization.map(Percent::get),
        }
    }
}

impl ProfileCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = || context.admin();
        match self {
            Self::Kernels(args) => args.run(context),
            Self::Record(args) => args.run(context).await,
            Self::Pairs(args) => args.run(context).await,
            Self::Show(args) => args.run(context).await,
            Self::Export {
                file,
                pairs: Some(kind),
            } => {
                let csv = admin()?.pairs(&kind).await?;
                match file {
                    None => Ok(output::raw(csv.as_bytes())?),
                    Some(file) => {
                        write_file(&file, csv.as_bytes())?;
                        report(context, "exported", csv.lines().skip(1).count(), "pair")
                    }
                }
            }
            Self::Import {
                file,
                pairs: Some(kind),
            } => {
                let pairs = PairTable::from_csv(&read_text(&file)?)
                    .with_context(|| format!("{}", file.display()))?;
                admin()?.import_pairs(&kind, pairs.to_csv()).await?;
                report(context, "imported", pairs.pairs.len(), "pair")
            }
            Self::Export {
                file: None,
                pairs: None,
            } => Ok(output::raw(
                admin()?.profiles(None).await?.to_csv().as_bytes(),
            )?),
            Self::Export {
                file: Some(file),
                pairs: None,
            } => {
                let profiles = admin()?.profiles(None).await?;
                write_file(&file, profiles.to_csv().as_bytes())?;
                report(context, "exported", profiles.len(), "profile")
            }
            Self::Import { file, pairs: None } => {
                let profiles = ProfileTable::from_csv(&read_text(&file)?)
                    .with_context(|| format!("{}", file.display()))?;
                admin()?.import_profiles(&profiles).await?;
                report(context, "imported", profiles.len(), "profile")
            }
        }
    }
}

impl ShowArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let profiles = admin.profiles(self.model.as_ref()).await?;
        if let (Some(model), Some(plot)) = (&self.model, &self.plot) {
            let batches = self.batches(&admin.kernels(model).await?)?;
            ensure!(
                !batches.is_empty(),
                "--plot: no kernels of {model} are recorded{}: they are when a model is measured on a GPU",
                if self.batch_size.is_empty() && self.device_kind.is_none() {
                    ""
                } else {
                    " of these"
                }
            );
            plot.write(&kernel_figure::figure(
                format!("Kernels of {model}"),
                &batches,
            ))?;
        }
        show(context, &profiles)
    }

    /// The batches to draw, each with its name.
    fn batches(&self, kernels: &KernelTable) -> anyhow::Result<Vec<(String, KernelProfile)>> {
        let mut batches = Vec::new();
        for (model, kind, recording) in kernels.iter() {
            if self.device_kind.as_ref().is_some_and(|only| only != kind) {
                continue;
            }
            for (size, _) in recording.batches() {
                if !self.batch_size.is_empty() && !self.batch_size.contains(&size) {
                    continue;
                }
                let name = model_text(&model.name, model.version);
                let name = format!("{name} at batch size {size} on {kind}");
                let profile = recording.profile(size).expect("it has this size");
                batches.push((name.clone(), profile.context(name)?));
            }
        }
        Ok(batches)
    }
}

fn report(context: &Context, done: &str, count: usize, noun: &str) -> anyhow::Result<()> {
    if context.json() {
        return output::json(&serde_json::json!({ done: count }));
    }
    let plural = if count == 1 { "" } else { "s" };
    Ok(output::line(format!("{done} {count} {noun}{plural}"))?)
}

fn show(context: &Context, profiles: &ProfileTable) -> anyhow::Result<()> {
    let rows = profiles.iter().flat_map(|(model, kind, profile)| {
        profile
            .rows()
            .iter()
            .map(move |row| Row::new(model, kind, row))
    });
    let rows: Vec<Row> = rows.collect();
    if context.json() {
        return output::json(&rows);
    }
    let mut table = output::table(&[
        "MODEL",
        "DEVICE KIND",
        "SHARE %",
        "BATCH",
        "MEDIAN MS",
        "P99 MS",
        "REQUESTS/S",
        "MEMORY MIB",
        "OCCUPANCY %",
        "MEAN %",
        "SM %",
    ]);
    for row in rows {
        table.add_row([
            row.model,
            row.device_kind.to_string(),
            number(row.compute_share_pct),
            row.batch_size.to_string(),
            format!("{:.2}", row.latency_ms),
            row.latency_p99_ms
                .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}")),
            number(f64::from(row.batch_size) / row.latency_ms * 1e3),
            number_or_dash(row.memory_mib),
            number_or_dash(row.achieved_occupancy_pct),
            number_or_dash(row.mean_occupancy_pct),
            number_or_dash(row.sm_utilization_pct),
        ]);
    }
    Ok(output::table_or(&table, "no profiles")?)
}
