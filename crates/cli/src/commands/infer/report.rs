//! The response of a model as JSON and as text.

use std::time::Duration;

use packhorse_protocol::InferResponse;
use packhorse_terminal::output;
use serde_json::{Value, json};

use super::{elements, top_classes::Class};

/// The number of elements of an output that the text shows.
const SHOWN_ELEMENTS: usize = 8;

/// Prints a response as JSON: that of the protocol, with the latency and, if requested, the best classes.
pub(super) fn print_json(
    response: &InferResponse,
    latency: Duration,
    classes: Option<&[Vec<Class>]>,
) -> anyhow::Result<()> {
    let outputs = response.outputs.iter().map(|output| {
        json!({
            "name": output.name(), "datatype": output.datatype(), "shape": output.shape(), "data": elements::to_json(output),
        })
    });
    let mut report = json!({
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": outputs.collect::<Vec<_>>(),
        "latency_ms": latency.as_secs_f64() * 1e3,
    });
    if let Some(classes) = classes {
        report["classes"] = json!(classes);
    }
    output::print_json(&report)
}

/// Prints a response as text: its outputs or, if requested, the best classes.
pub(super) fn print_text(
    response: &InferResponse,
    latency: Duration,
    classes: Option<&[Vec<Class>]>,
) -> anyhow::Result<()> {
    let InferResponse {
        model_name,
        model_version,
        variant,
        ..
    } = response;
    let family = match variant {
        Some(_) => format!(" for {model_name}"),
        None => String::new(),
    };
    let model_name = variant.as_ref().unwrap_or(model_name);
    output::print_line(format!(
        "{model_name} version {model_version} answered{family} in {:.1} ms",
        latency.as_secs_f64() * 1e3
    ))?;
    if let Some(rows) = classes {
        for (i, row) in rows.iter().enumerate() {
            let mut table = output::new_table(&[]);
            for class in row {
                let label = class
                    .label
                    .clone()
                    .unwrap_or_else(|| format!("class {}", class.index));
                table.add_row([format!("{:.4}", class.score), label]);
            }
            if rows.len() > 1 {
                output::print_line(format!("row {i}:"))?;
            }
            output::print_table(&table, "no classes")?;
        }
        return Ok(());
    }
    let mut table = output::new_table(&["OUTPUT", "DATATYPE", "SHAPE", "VALUES"]);
    for output in &response.outputs {
        let mut shown: Vec<String> = elements::first_to_json(output, SHOWN_ELEMENTS)
            .iter()
            .map(Value::to_string)
            .collect();
        if output.shape().elements() > SHOWN_ELEMENTS as u64 {
            shown.push("…".to_owned());
        }
        table.add_row([
            output.name().to_owned(),
            output.datatype().to_string(),
            output.shape().to_string(),
            shown.join(" "),
        ]);
    }
    Ok(output::print_table(&table, "no outputs")?)
}
