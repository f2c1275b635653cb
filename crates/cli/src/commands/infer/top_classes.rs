//! `packhorse infer --top`: the best classes of a classifier, with their names.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use packhorse_protocol::{InferResponse, Tensor};
use packhorse_terminal::files::read_text;
use serde::Serialize;

use super::{elements, outputs::find_output};

#[derive(clap::Args)]
#[command(next_help_heading = "Classification")]
#[group(id = "classification", multiple = true)]
pub(crate) struct TopClassesArgs {
    /// Print the N best classes in place of the outputs
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// File with the names of the classes, one per line
    #[arg(long, value_name = "FILE", requires = "top")]
    labels: Option<PathBuf>,
    /// Print the softmax of the scores, for outputs that are logits
    #[arg(long, requires = "top")]
    softmax: bool,
    /// Output with one score per class [default: the model's only output]
    #[arg(long, value_name = "NAME", requires = "top")]
    scores: Option<String>,
}

/// A class with its score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Class {
    /// Its index in the output.
    pub(crate) index: usize,
    /// Its name, if --labels has one.
    pub(crate) label: Option<String>,
    /// Its score in the output, or the softmax of it.
    pub(crate) score: f64,
}

impl TopClassesArgs {
    /// Returns the best classes of each row of scores, best first; `None` without --top.
    pub(super) fn rank(&self, response: &InferResponse) -> anyhow::Result<Option<Vec<Vec<Class>>>> {
        let Some(top) = self.top else { return Ok(None) };
        let labels = match &self.labels {
            Some(path) => read_text(path)?.lines().map(str::to_owned).collect(),
            None => Vec::new(),
        };
        let output = match (&self.scores, response.outputs.as_slice()) {
            (Some(name), _) => find_output(response, name)?,
            (None, [only]) => only,
            (None, outputs) => bail!(
                "the model has {} outputs: name the one with the scores with --scores",
                outputs.len()
            ),
        };
        Ok(Some(rank(output, top, self.softmax, &labels)?))
    }
}

fn rank(
    output: &Tensor,
    top: usize,
    softmax: bool,
    labels: &[String],
) -> anyhow::Result<Vec<Vec<Class>>> {
    let classes = output.shape().dims().last().copied().unwrap_or(0);
    let classes = usize::try_from(classes)?;
    ensure!(
        classes > 0,
        "output {:?} of shape {} has no scores",
        output.name(),
        output.shape()
    );
    let scores = elements::to_json(output)
        .into_iter()
        .map(|score| score.as_f64());
    let scores: Vec<f64> = scores
        .collect::<Option<_>>()
        .with_context(|| format!("output {:?} has scores that are not numbers", output.name()))?;
    let rows = scores.chunks(classes).map(|row| {
        let row = if softmax {
            softmax_of(row)
        } else {
            row.to_vec()
        };
        let mut ranked: Vec<(usize, f64)> = row.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let best = ranked.into_iter().take(top);
        best.map(|(index, score)| Class {
            index,
            label: labels.get(index).cloned(),
            score,
        })
        .collect()
    });
    Ok(rows.collect())
}

fn softmax_of(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials
        .into_iter()
        .map(|exponential| exponential / sum)
        .collect()
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Shape;

    use super::*;

    #[test]
    fn the_best_classes_come_first_row_by_row() {
        let output = Tensor::from_values(
            "y",
            Shape::new(&[2, 3]).unwrap(),
            &[0.1_f32, 0.7, 0.2, 0.5, 0.3, 0.2],
        )
        .unwrap();
        let labels = ["cat", "dog"].map(str::to_owned);
        let rows = rank(&output, 2, false, &labels).unwrap();
        let class = |index, label: Option<&str>, score| Class {
            index,
            label: label.map(str::to_owned),
            score,
        };
        assert_eq!(rows[0], [class(1, Some("dog"), 0.7), class(2, None, 0.2)]);
        assert_eq!(
            rows[1],
            [class(0, Some("cat"), 0.5), class(1, Some("dog"), 0.3)]
        );
    }

    #[test]
    fn softmax_returns_probabilities_for_large_logits() {
        let probabilities = softmax_of(&[1000.0, 1000.0 + 3_f64.ln()]);
        assert!(
            (probabilities[0] - 0.25).abs() < 1e-9 && (probabilities[1] - 0.75).abs() < 1e-9,
            "{probabilities:?}"
        );
    }

    #[test]
    fn an_output_without_scores_is_refused() {
        let empty = Tensor::from_values::<f32>("y", Shape::new(&[2, 0]).unwrap(), &[]).unwrap();
        let text = Tensor::from_byte_strings("y", Shape::new(&[1]).unwrap(), &["a"]).unwrap();
        let nan = Tensor::from_values("y", Shape::new(&[1]).unwrap(), &[f32::NAN]).unwrap();
        for output in [empty, text, nan] {
            assert!(rank(&output, 1, false, &[]).is_err());
        }
    }
}
