//! The comparison that a worker makes at its start: what it has made of a program against the program as it is, on random inputs. Shows which
//! rewritings differ on this device, and what the comparison costs.

use serde_json::json;

use crate::{
    host::{Backend, FP32_ONLY, Host},
    models::{self, MAIN_MODELS, Model},
    part::Part,
    report::{Section, Table},
    worker_bench::{Bench, Measurement, Mode},
};

pub(crate) struct Answers;

const BATCH_SIZE: u32 = 8;

const COLUMNS: [&str; 6] = [
    "model",
    "arithmetic",
    "batches compared",
    "dropped",
    "start s",
    "start s without comparison",
];

impl Part for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }

    fn description(&self) -> &'static str {
        "what a worker makes of a program against the program as it is"
    }

    fn run(&self, host: &Host, section: &mut Section) -> anyhow::Result<()> {
        let (models, missing) = models::make_models(host, &MAIN_MODELS)?;
        for (name, reason) in missing {
            section.unavailable(name, reason);
        }
        let mut table = Table {
            title: "Starts of a worker",
            columns: COLUMNS.to_vec(),
            rows: Vec::new(),
        };
        let fp32_only = [FP32_ONLY].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let arithmetics: &[(&str, &[(String, String)])] = match host.backend {
            Backend::Nvidia => &[("PyTorch's defaults", &[]), ("FP32 only", &fp32_only)],
            Backend::Cpu => &[("FP32", &[])],
        };
        for model in &models {
            for (arithmetic, environment) in arithmetics {
                let what = format!("{}, {arithmetic}", model.name);
                if host.is_out_of_time() {
                    section.out_of_time(what);
                    continue;
                }
                let start = |mode| start(host, model, mode, environment);
                match (start(Mode::Trusting), start(Mode::Verifying)) {
                    (Ok(trusting), Ok(verifying)) => {
                        let row = [json!(model.name), json!(arithmetic)];
                        add(what, row, &trusting, &verifying, section, &mut table);
                    }
                    (Err(e), _) | (_, Err(e)) => section.failed(what, format!("{e:#}")),
                }
            }
        }
        section.table(table);
        Ok(())
    }
}

fn start(
    host: &Host,
    model: &Model,
    mode: Mode,
    environment: &[(String, String)],
) -> anyhow::Result<Measurement> {
    let bench = Bench {
        model,
        batch_size: BATCH_SIZE,
        mode,
        environment,
    };
    bench.run(host)
}

fn add(
    what: String,
    row: [serde_json::Value; 2],
    trusting: &Measurement,
    verifying: &Measurement,
    section: &mut Section,
    table: &mut Table,
) {
    let Some(verification) = &verifying.verification else {
        section.failed(what, "the worker compared nothing");
        return;
    };
    let dropped: Vec<String> = verification
        .dropped
        .iter()
        .map(|dropped| format!("{}: {}", dropped.rewriting, dropped.reason))
        .collect();
    match &verification.not_compared {
        Some(reason) => section.unavailable(what, reason),
        None => section.condition(
            what,
            "nothing dropped",
            dropped.is_empty(),
            format!("{} batches; {}", verification.compared, dropped.join("; ")),
        ),
    }
    let [model, arithmetic] = row;
    table.rows.push(vec![
        model,
        arithmetic,
        json!(verification.compared),
        json!(dropped.len()),
        json!(verifying.start_s),
        json!(trusting.start_s),
    ]);
}
