//! `packhorse profile`: what was measured of models.

use std::path::PathBuf;

use anyhow::Context as _;
use packhorse_cluster::{
    ByteCount, DeviceKind, ModelId, ModelName, Percent, ProfileRow, ProfileTable,
};
use serde::Serialize;

use super::{kernels::KernelsArgs, model_text};
use crate::{
    context::{Context, read_text, write_file},
    output::{self, number, number_or_dash},
};

#[derive(clap::Subcommand)]
#[command(
    after_help = "Examples:\n  packhorse profile show minilm\n  packhorse profile export profiles.csv\n  packhorse profile import profiles.csv\n  packhorse profile kernels batch.json"
)]
pub(crate) enum ProfileCommand {
    /// Show latency and memory per batch size
    #[command(
        after_help = "Examples:\n  packhorse profile show\n  packhorse profile show minilm --json"
    )]
    Show {
        /// Only of this model
        model: Option<ModelName>,
    },
    /// Write all profiles as CSV
    #[command(
        after_help = "Examples:\n  packhorse profile export > profiles.csv\n  packhorse profile export profiles.csv"
    )]
    Export {
        /// Where to [default: standard output]
        file: Option<PathBuf>,
    },
    /// Read profiles from CSV, in place of what is there for the same model and device kind
    #[command(after_help = "\
The columns are model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,
achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct; a cell that is not known is empty.

Example:
  packhorse profile import profiles/v100-thesis.csv")]
    Import {
        /// The CSV file
        file: PathBuf,
    },
    /// Work out occupancy and SM utilisation of the kernels that torch.profiler recorded of a batch
    Kernels(KernelsArgs),
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
            Self::Show { model } => show(context, &admin()?.profiles(model.as_ref()).await?),
            Self::Export { file: None } => Ok(output::raw(
                admin()?.profiles(None).await?.to_csv().as_bytes(),
            )?),
            Self::Export { file: Some(file) } => {
                let profiles = admin()?.profiles(None).await?;
                write_file(&file, profiles.to_csv().as_bytes())?;
                report(context, "exported", profiles.len())
            }
            Self::Import { file } => {
                let profiles = ProfileTable::from_csv(&read_text(&file)?)
                    .with_context(|| format!("{}", file.display()))?;
                admin()?.import_profiles(&profiles).await?;
                report(context, "imported", profiles.len())
            }
        }
    }
}

fn report(context: &Context, done: &str, profiles: usize) -> anyhow::Result<()> {
    if context.json() {
        return output::json(&serde_json::json!({ done: profiles }));
    }
    let noun = if profiles == 1 { "profile" } else { "profiles" };
    Ok(output::line(format!("{done} {profiles} {noun}"))?)
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
            number_or_dash(row.sm_utilization_pct),
        ]);
    }
    Ok(output::table_or(&table, "no profiles")?)
}
