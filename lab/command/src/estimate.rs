//! `packhorse-lab profile estimate`: estimates the profile of a program on kinds of device, from its operators.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};
use packhorse_cluster::{ByteCount, DeviceKind, ProfileTable, Program, known_kind};
use packhorse_estimator::{Coefficients, DeviceSheet, ExpectedError, OperatorGraph, batch_sizes};
use packhorse_terminal::{
    context::Context, files::write_file, output, profile_row::ProfileRowView,
};
use serde::Serialize;
use serde_json::json;

use super::local_worker::{LocalModel, WorkerProgramArgs};

#[derive(clap::Args)]
#[command(after_help = "\
The worker finds the operators of the program; it needs no device of that kind, and no gateway. SPEC.json is that of \
`packhorse model register`. The CSV is one that scenarios and `packhorse profile import` take. A gateway makes such an \
estimate by itself and replaces it by a measurement; a profile that is imported counts as measured.

Examples:
  packhorse-lab profile estimate resnet50.pt --device-kind H100-SXM5-80GB
  packhorse-lab profile estimate resnet50.pt --spec model.json --device-kind T4 --device-kind L4 --output estimated.csv
  packhorse-lab profile estimate resnet50.pt --device-kind H100-SXM5-80GB --json")]
pub(crate) struct EstimateArgs {
    /// TorchScript file of the model
    #[arg(value_name = "FILE")]
    artifact: PathBuf,
    /// JSON file with the model's name and signature [default: the file beside FILE with the extension json]
    #[arg(long, value_name = "SPEC.json")]
    spec: Option<PathBuf>,
    /// Kind of device with a built-in data sheet; may be repeated
    #[arg(long, value_name = "KIND", required = true)]
    device_kind: Vec<DeviceKind>,
    /// CSV file to write [default: standard output]
    #[arg(long, value_name = "FILE.csv")]
    output: Option<PathBuf>,
    #[command(flatten)]
    worker: WorkerProgramArgs,
}

/// The estimates as JSON.
#[derive(Serialize)]
struct EstimateReport {
    profiles: Vec<ProfileRowView>,
    expected_error: serde_json::Value,
}

/// A kind of device for which profiles can be estimated.
struct EstimatedKind<'a> {
    kind: &'a DeviceKind,
    sheet: DeviceSheet,
    memory: ByteCount,
}

impl<'a> EstimatedKind<'a> {
    fn new(kind: &'a DeviceKind) -> anyhow::Result<Self> {
        let (Some(sheet), Some((memory, _))) = (DeviceSheet::of(kind), known_kind(kind)) else {
            let known: Vec<&str> = DeviceSheet::kinds().collect();
            bail!(
                "--device-kind: {kind} has no built-in data sheet: expected one of {}",
                known.join(", ")
            );
        };
        Ok(Self {
            kind,
            sheet,
            memory,
        })
    }
}

impl EstimateArgs {
    pub(super) async fn run(self, context: &Context) -> anyhow::Result<()> {
        let kinds = self.device_kind.iter().map(EstimatedKind::new);
        let kinds: Vec<EstimatedKind<'_>> = kinds.collect::<anyhow::Result<_>>()?;
        let worker = self.worker.path()?;
        let beside = self.artifact.with_extension("json");
        let spec = self.spec.as_deref().unwrap_or(&beside);
        ensure!(
            spec.is_file(),
            "the model's signature {} does not exist: name it with --spec",
            spec.display()
        );
        let model = LocalModel::read(spec, &self.artifact).await?;
        let spinner = output::spinner();
        spinner.set_message("looking for the operators of the program");
        let operators = operators(&worker, &model);
        spinner.finish_and_clear();
        let operators = operators.with_context(|| {
            let file = self.artifact.display();
            format!("{file} cannot be estimated")
        })?;
        let table = estimate(&model.program, &operators, &kinds)?;
        if let Some(file) = &self.output {
            write_file(file, table.to_csv().as_bytes())?;
        }
        output::note(expected_error_text());
        if context.json() {
            return output::print_json(&EstimateReport {
                profiles: ProfileRowView::of_table(&table),
                expected_error: expected_error_json(),
            });
        }
        if self.output.is_none() {
            output::print_bytes(table.to_csv().as_bytes())?;
        }
        Ok(())
    }
}

/// Returns the estimated profiles of a program.
fn estimate(
    program: &Program,
    operators: &OperatorGraph,
    kinds: &[EstimatedKind<'_>],
) -> anyhow::Result<ProfileTable> {
    let sizes = batch_sizes(program);
    let mut table = ProfileTable::default();
    for EstimatedKind {
        kind,
        sheet,
        memory,
    } in kinds
    {
        let profile = Coefficients::libtorch().profile(operators, sheet, *memory, &sizes);
        let profile = profile.with_context(|| {
            let model = &program.model.name;
            format!("the memory of {kind} does not hold {model}, by its estimate")
        })?;
        table.insert(program.model.clone(), (*kind).clone(), profile);
    }
    Ok(table)
}

/// Has a worker find the operators of a program.
fn operators(worker: &Path, model: &LocalModel) -> anyhow::Result<OperatorGraph> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let signature = folder.path().join("signature.json");
    let program = &model.program;
    let text = json!({
        "max_batch_size": program.max_batch_size,
        "inputs": program.inputs,
        "outputs": program.outputs,
    });
    fs::write(&signature, text.to_string()).context("cannot write the program's signature")?;
    let inspected = Command::new(worker)
        .args(["inspect", "--end-with-parent", "--model"])
        .arg(&model.artifact)
        .arg("--signature")
        .arg(&signature)
        .output()
        .with_context(|| format!("cannot start {}", worker.display()))?;
    if !inspected.status.success() {
        let log = String::from_utf8_lossy(&inspected.stderr);
        let status = inspected.status;
        bail!(reason(&log).unwrap_or_else(|| format!("the worker ended with {status}")));
    }
    let text = String::from_utf8_lossy(&inspected.stdout);
    OperatorGraph::from_json(text.trim()).context("cannot read the operators")
}

/// Returns the reason that a worker gives why it finds no operators.
fn reason(log: &str) -> Option<String> {
    let mut lines = log.lines().filter(|line| !line.trim().is_empty());
    let said = lines
        .clone()
        .find_map(|line| line.strip_prefix("no operators: "));
    said.or_else(|| lines.next_back()).map(ToOwned::to_owned)
}

/// The estimated quantities with their expected errors.
const ERRORS: [(&str, &str, ExpectedError); 3] = [
    ("latency", "latency_ms", ExpectedError::LATENCY),
    ("memory", "memory_mib", ExpectedError::MEMORY),
    (
        "utilisation of the multiprocessors",
        "sm_utilization_pct",
        ExpectedError::SM_UTILIZATION,
    ),
];

fn expected_error_text() -> String {
    let errors = ERRORS.map(|(quantity, _, error)| {
        let ExpectedError {
            median_pct,
            p90_pct,
        } = error;
        format!("{quantity} {median_pct} % ({p90_pct} %)")
    });
    format!(
        "expected error in the median (90th percentile): {}; found on {}, unknown on other kinds of device",
        errors.join(", "),
        ExpectedError::MEASURED_ON
    )
}

fn expected_error_json() -> serde_json::Value {
    let errors = ERRORS.map(|(_, column, error)| {
        let error = json!({"median_pct": error.median_pct, "p90_pct": error.p90_pct});
        (column.to_owned(), error)
    });
    let measured_on = ("measured_on".to_owned(), json!(ExpectedError::MEASURED_ON));
    errors.into_iter().chain([measured_on]).collect()
}
