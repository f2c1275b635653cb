//! `packhorse profile`: shows, exports and imports measurements of models.

use std::path::PathBuf;

use anyhow::Context as _;
use packhorse_api::{BatchTimeView, LearnedTimeView};
use packhorse_cluster::{DeviceKind, ModelName, ProfileSource, ProfileTable};
use packhorse_contention::PairTable;
use packhorse_terminal::{
    context::Context,
    count,
    files::{read_text, write_file},
    output::{self, format_number, format_number_or_dash},
    profile_row::ProfileRowView,
    versioned_name,
};

use crate::laboratory::{ProfileLaboratoryCommand, pass_on};

#[derive(clap::Subcommand)]
#[command(
    after_help = "Examples:\n  packhorse profile show minilm\n  packhorse profile export profiles.csv\n  packhorse profile import profiles.csv\n  packhorse profile kernels batch.json\n  packhorse profile pairs a.json=a.pt b.json=b.pt --output pairs.csv\n  packhorse profile estimate resnet50.pt --device-kind H100-SXM5-80GB"
)]
pub(crate) enum ProfileCommand {
    /// Show latency, memory and occupancy by batch size
    Show(ShowArgs),
    /// Write all profiles, or measured pairs, as CSV
    Export(ExportArgs),
    /// Import profiles, or measured pairs, from CSV; they replace those of the same model and kind of device, but estimates replace no measured ones
    Import(ImportArgs),
    #[command(flatten)]
    Laboratory(ProfileLaboratoryCommand),
}

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  packhorse profile export > profiles.csv\n  packhorse profile export profiles.csv\n  packhorse profile export --pairs T4 pairs.csv"
)]
pub(crate) struct ExportArgs {
    /// File to write [default: standard output]
    file: Option<PathBuf>,
    /// Write the pairs that were measured on this kind of device, in place of profiles
    #[arg(long, value_name = "KIND")]
    pairs: Option<DeviceKind>,
}

#[derive(clap::Args)]
#[command(after_help = "\
The columns are model, device_kind, batch_size, compute_share_pct, latency_ms, latency_p99_ms, memory_mib, \
achieved_occupancy_pct, mean_occupancy_pct and sm_utilization_pct; the cell of an unknown value is empty. With --pairs the file \
is one that `packhorse profile pairs --output` wrote; the policy `goodput` learns from it how models slow each other.

Examples:
  packhorse profile import profiles/v100-thesis.csv
  packhorse profile import --pairs V100-SXM2-16GB pairs.csv")]
pub(crate) struct ImportArgs {
    /// CSV file to read
    file: PathBuf,
    /// Import pairs that were measured on this kind of device, in place of profiles; they replace the earlier pairs of the kind
    #[arg(long, value_name = "KIND")]
    pairs: Option<DeviceKind>,
}

#[derive(clap::Args)]
#[command(after_help = "\
OCCUPANCY is the highest estimated achieved occupancy of any kernel; MEAN and SM are the means of achieved occupancy and SM \
utilisation, weighted by duration. CPUs have none of them. SOURCE is `estimated` until a model is measured, if its profile \
follows from its operators. `packhorse profile plot` draws them over the time of a batch. --learned shows the times that the gateway \
observed in the last minutes beside those of the profile: LEARNED MS with what neighbours on the device cost, ALONE MS without. \
A `!` marks one that contradicts the profile.

Examples:
  packhorse profile show
  packhorse profile show minilm --learned
  packhorse profile show minilm --json")]
pub(crate) struct ShowArgs {
    /// Show this model only
    model: Option<ModelName>,
    /// Show the times that the gateway observed beside those of the profile
    #[arg(long, requires = "model")]
    learned: bool,
}

impl ProfileCommand {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        match self {
            Self::Show(args) => args.run(context).await,
            Self::Export(args) => args.run(context).await,
            Self::Import(args) => args.run(context).await,
            Self::Laboratory(_) => pass_on(),
        }
    }
}

impl ExportArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        let (csv, number, noun) = if let Some(kind) = &self.pairs {
            let csv = admin.pairs(kind).await?;
            let number = csv.lines().skip(1).count();
            (csv, number, "pair")
        } else {
            let profiles = admin.profiles(None).await?;
            (profiles.to_csv(), profiles.len(), "profile")
        };
        let Some(file) = &self.file else {
            return Ok(output::print_bytes(csv.as_bytes())?);
        };
        write_file(file, csv.as_bytes())?;
        print_count(context, "exported", number, noun)
    }
}

impl ImportArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let csv = read_text(&self.file)?;
        let shown = || self.file.display().to_string();
        if let Some(kind) = &self.pairs {
            let pairs = PairTable::from_csv(&csv).with_context(shown)?;
            context.admin()?.import_pairs(kind, pairs.to_csv()).await?;
            print_count(context, "imported", pairs.pairs.len(), "pair")
        } else {
            let profiles = ProfileTable::from_csv(&csv).with_context(shown)?;
            let done = context.admin()?.import_profiles(&profiles).await?;
            if context.json() {
                return output::print_json(&done);
            }
            print_count(context, "imported", done.imported, "profile")?;
            if done.left_out > 0 {
                output::print_line(format!(
                    "left out {}: no estimate replaces a measured profile",
                    count(done.left_out, "estimate")
                ))?;
            }
            Ok(())
        }
    }
}

impl ShowArgs {
    async fn run(self, context: &Context) -> anyhow::Result<()> {
        let admin = context.admin()?;
        if let Some(model) = self.model.as_ref().filter(|_| self.learned) {
            return print_learned(context, &admin.learned_times(model).await?);
        }
        let profiles = admin.profiles(self.model.as_ref()).await?;
        print_profiles(context, &profiles)
    }
}

/// Prints how many items were exported or imported.
fn print_count(context: &Context, done: &str, number: usize, noun: &str) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(&serde_json::json!({ done: number }));
    }
    Ok(output::print_line(format!(
        "{done} {}",
        count(number, noun)
    ))?)
}

fn print_learned(context: &Context, times: &[BatchTimeView]) -> anyhow::Result<()> {
    if context.json() {
        return output::print_json(&times);
    }
    let mut table = output::new_table(&[
        "MODEL",
        "DEVICE KIND",
        "BATCH",
        "PROFILE MS",
        "LEARNED MS",
        "ALONE MS",
        "BATCHES",
        "AGE S",
        "",
    ]);
    let millis = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
    for time in times {
        let learned = time.learned;
        let contradicts = learned.is_some_and(|learned| learned.contradicts_profile);
        let of_learned =
            |text: fn(LearnedTimeView) -> String| learned.map_or_else(|| "-".to_owned(), text);
        table.add_row([
            versioned_name(&time.model, time.version),
            time.device_kind.to_string(),
            time.batch_size.to_string(),
            format!("{:.2}", time.profile_ms),
            millis(learned.map(|learned| learned.latency_ms)),
            millis(learned.and_then(|learned| learned.alone_ms)),
            of_learned(|learned| learned.batches.to_string()),
            of_learned(|learned| format!("{:.0}", learned.age_s)),
            if contradicts { "!" } else { "" }.to_owned(),
        ]);
    }
    Ok(output::print_table(&table, "no profiles")?)
}

fn print_profiles(context: &Context, profiles: &ProfileTable) -> anyhow::Result<()> {
    let rows = ProfileRowView::of_table(profiles);
    if context.json() {
        return output::print_json(&rows);
    }
    let has_shapes = rows.iter().any(|row| row.input_shapes.is_some());
    let mut header = vec![
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
        "SOURCE",
    ];
    if has_shapes {
        header.push("INPUTS");
    }
    let mut table = output::new_table(&header);
    for row in rows {
        let mut cells = vec![
            row.model,
            row.device_kind.to_string(),
            format_number(row.compute_share_pct),
            row.batch_size.to_string(),
            format!("{:.2}", row.latency_ms),
            row.latency_p99_ms
                .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}")),
            format_number(f64::from(row.batch_size) / row.latency_ms * 1e3),
            format_number_or_dash(row.memory_mib),
            format_number_or_dash(row.achieved_occupancy_pct),
            format_number_or_dash(row.mean_occupancy_pct),
            format_number_or_dash(row.sm_utilization_pct),
            match row.source {
                ProfileSource::Measured => "measured",
                ProfileSource::Estimated => "estimated",
            }
            .to_owned(),
        ];
        if has_shapes {
            cells.push(row.input_shapes.unwrap_or_else(|| "-".to_owned()));
        }
        table.add_row(cells);
    }
    Ok(output::print_table(&table, "no profiles")?)
}
