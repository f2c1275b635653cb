//! Predictions: rows of outputs as JSON, or what the model's registration says of them.

use axum::http::StatusCode;
use packhorse_cluster::{Classes, Postprocess};
use packhorse_protocol::RowWriter;
use serde::Serialize;

use crate::{
    api::inference::{
        classes::{CLASS_TEXT, ranked, scores},
        computation::Answer,
        error::InferenceError,
    },
    driver::OutputRows,
};

/// A class of a row.
#[derive(Debug, Serialize)]
pub(super) struct Class {
    /// The index of the class.
    index: usize,
    /// The name of the class, if the model declares names.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// The score, or the softmax of the scores.
    score: f64,
}

/// Returns the best classes of a row, the best first.
pub(super) fn best(scores: &[f64], declared: &Classes) -> Vec<Class> {
    let ranked = ranked(scores, declared.top_k as usize, declared.softmax);
    let class = |(score, index): (f64, usize)| Class {
        index,
        label: declared.labels.get(index).cloned(),
        score,
    };
    ranked.into_iter().map(class).collect()
}

/// Returns about as many bytes as the predictions of an answer have.
pub(super) fn bound(answer: &Answer, rows: usize) -> u64 {
    let of_output = |output: &OutputRows| 8 * output.data.len() as u64;
    let texts: u64 = answer.answered.iter().map(of_output).sum();
    let outputs = answer.answered.len() as u64;
    texts + rows as u64 * outputs * 64
}

/// Returns about as many bytes as the classes of an answer have.
pub(super) fn bound_of_classes(answer: &Answer, rows: usize) -> u64 {
    let declared = answer.model.spec.processing.postprocess.values();
    let classes = declared.filter_map(|declared| Some(u64::from(declared.classes()?.top_k)));
    classes.sum::<u64>() * rows as u64 * CLASS_TEXT
}

/// An output whose rows are written.
enum Written<'a> {
    /// As it is.
    Rows(RowWriter<'a>),
    /// The best classes of each row.
    Classes(Vec<f64>, usize, &'a Classes),
}

/// Appends the predictions of an answer, with commas between them: each is the row of the only output, or an object of rows by the outputs' names. With
/// `classes` an output that declares classes has the best of them in place of its scores.
pub(super) fn write(
    answer: &Answer,
    rows: usize,
    classes: bool,
    out: &mut Vec<u8>,
) -> Result<(), InferenceError> {
    let spec = &answer.model.spec;
    let batches = usize::from(spec.program.batches());
    let outputs = spec.program.outputs.iter().zip(&answer.answered);
    let mut written: Vec<_> = outputs
        .map(|(output, answered)| {
            let row = answered.shape.dims().get(batches..).unwrap_or_default();
            let declared = spec.processing.postprocess.get(&output.name);
            let declared = declared.and_then(Postprocess::classes);
            let declared =
                declared.filter(|_| classes && row.len() == 1 && output.datatype.is_float());
            let written = match declared {
                Some(declared) => {
                    let width = row.last().map_or(1, |classes| *classes as usize);
                    let scores = scores(output.datatype, &answered.data);
                    Written::Classes(scores, width, declared)
                }
                None => Written::Rows(RowWriter::new(
                    &output.name,
                    output.datatype,
                    row,
                    &answered.data,
                    answer.non_finite,
                )),
            };
            (output.name.as_str(), written)
        })
        .collect();
    let is_one = written.len() == 1;
    for row in 0..rows {
        if row > 0 {
            out.push(b',');
        }
        for (index, (name, written)) in written.iter_mut().enumerate() {
            if !is_one {
                out.push(if index == 0 { b'{' } else { b',' });
                json(name, out)?;
                out.push(b':');
            }
            match written {
                Written::Rows(rows) => rows.write(out)?,
                Written::Classes(scores, width, declared) => {
                    let begin = row * *width;
                    let row = scores.get(begin..begin + *width).unwrap_or_default();
                    json(&best(row, declared), out)?;
                }
            }
        }
        if !is_one {
            out.extend_from_slice(if written.is_empty() { b"{}" } else { b"}" });
        }
    }
    Ok(())
}

fn json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), InferenceError> {
    let failed = |e: serde_json::Error| {
        InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())
    };
    serde_json::to_writer(out, value).map_err(failed)
}
