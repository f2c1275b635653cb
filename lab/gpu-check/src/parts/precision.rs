//! The worth of PyTorch's settings of precision and layout, which a worker could turn on: requests/s, energy, and the difference of answers.

use std::{fs, time::Duration};

use anyhow::{Context as _, bail};
use packhorse_cluster::Datatype;
use serde::Deserialize;
use serde_json::json;

use crate::{
    host::Host,
    models::{self, EXAMPLE_ROWS, MAIN_MODELS, Model},
    part::Part,
    process::RunningProgram,
    report::{Section, Table},
};

pub(crate) struct Precision;

const SCRIPT: &str = include_str!("../../python/precision.py");
/// The time limit for one model, whose algorithms cuDNN compares under some settings.
const LIMIT: Duration = Duration::from_mins(3);

const COLUMNS: [&str; 7] = [
    "model",
    "batch",
    "setting",
    "requests/s",
    "of FP32",
    "J/request",
    "difference",
];

/// A measurement of one setting at one batch size. The numbers are there unless there is an error.
#[derive(Deserialize)]
struct Measured {
    batch_size: u32,
    setting: String,
    requests_per_s: Option<f64>,
    joules_per_request: Option<f64>,
    /// The largest difference to FP32, relative to the largest number in its answer.
    difference: Option<f64>,
    error: Option<String>,
}

impl Part for Precision {
    fn name(&self) -> &'static str {
        "precision"
    }

    fn description(&self) -> &'static str {
        "TF32, channels-last, cuDNN's benchmark and half precision: speed, energy, difference"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let folder = host.create_folder("precision")?;
        let script = folder.join("precision.py");
        fs::write(&script, SCRIPT).with_context(|| format!("write {}", script.display()))?;
        let mut table = Table {
            title: "One batch on the device, as a CUDA graph",
            columns: COLUMNS.to_vec(),
            rows: Vec::new(),
        };
        for name in MAIN_MODELS {
            let Some(model) = models::make_or_report(host, name, section)? else {
                continue;
            };
            let input = folder.join(format!("{name}.bin"));
            fs::write(&input, model.example(EXAMPLE_ROWS[0])?.input)
                .with_context(|| format!("write {}", input.display()))?;
            let mut python = host.script(&script);
            python.arg(host.torch_device()).arg(model.artifact());
            python.arg(&input).args(arguments(host, &model)?);
            python.envs(host.first_device());
            let run = RunningProgram::start("precision", &mut python, &folder)?;
            match run.finish(LIMIT) {
                Ok(printed) => {
                    let measured: Vec<Measured> = serde_json::from_str(&printed)
                        .with_context(|| format!("read what precision.py printed: {printed}"))?;
                    add(name, &measured, section, &mut table);
                }
                Err(e) => section.failed(name, format!("{e:#}")),
            }
        }
        section.table(table);
        Ok(())
    }
}

/// Returns the script's arguments after the files: datatype, batch sizes, seconds for each setting, and the shape of a row.
fn arguments(host: &Host, model: &Model) -> anyhow::Result<[String; 4]> {
    let input = &model.registration.inputs[0];
    let datatype = match input.datatype {
        Datatype::Fp32 => "float32",
        Datatype::Int64 => "int64",
        other => bail!("{}: inputs of {other} are not measured", model.name),
    };
    let dims = input.dims();
    let row: Vec<String> = dims[1..].iter().map(i64::to_string).collect();
    let (sizes, seconds) = if host.quick {
        ("2", "0.1")
    } else {
        ("8,32", "0.7")
    };
    Ok([datatype, sizes, seconds, &row.join(",")].map(str::to_owned))
}

/// Adds the gain of every setting over FP32 at the same batch size.
fn add(name: &str, measured: &[Measured], section: &mut Section, table: &mut Table) {
    for line in measured {
        let what = format!("{name} at {}, {}", line.batch_size, line.setting);
        if let Some(error) = &line.error {
            section.unavailable(what, error);
            continue;
        }
        let of_fp32 = measured
            .iter()
            .find(|other| other.batch_size == line.batch_size)
            .and_then(|first| Some(line.requests_per_s? / first.requests_per_s?));
        if let Some(gain) = of_fp32 {
            section.number(what, gain, "times FP32", None);
        }
        table.rows.push(vec![
            json!(name),
            json!(line.batch_size),
            json!(line.setting),
            json!(line.requests_per_s),
            json!(of_fp32),
            json!(line.joules_per_request),
            json!(line.difference),
        ]);
    }
}
