//! The best classes of a classifier, which the gateway answers with their names.

use anyhow::bail;
use packhorse_protocol::{
    ClassesMetadata, InferResponse, ModelMetadata, OutputRequest, RequestMessage,
};
use serde::Serialize;

#[derive(clap::Args)]
#[command(next_help_heading = "Classification")]
pub(crate) struct TopClassesArgs {
    /// Answer the N best classes of each row in place of the outputs [default: as many as the model declares, with --image or --text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "output")]
    top: Option<u32>,
    /// Output with one score per class [default: the one that the model declares, or its only one]
    #[arg(long, value_name = "NAME", requires = "top")]
    scores: Option<String>,
}

/// A class with its score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Class {
    /// Its index in the output.
    pub(crate) index: u64,
    /// Its name, if the model declares one.
    pub(crate) label: Option<String>,
    /// Its score in the output, or the softmax of it.
    pub(crate) score: f64,
}

impl TopClassesArgs {
    /// Returns the outputs of which classes are asked for; none for all outputs as they are.
    pub(super) fn outputs(
        &self,
        metadata: &ModelMetadata,
        wants_declared: bool,
    ) -> anyhow::Result<Vec<OutputRequest>> {
        let classes = |output: &str, count: u32| OutputRequest {
            name: output.to_owned(),
            form: None,
            range: None,
            classes: Some(count),
        };
        let declared = metadata.classes.as_slice();
        let Some(top) = self.top else {
            let declared = declared.iter().filter(|_| wants_declared);
            let of_declared = |of: &ClassesMetadata| classes(&of.output, of.top_k);
            return Ok(declared.map(of_declared).collect());
        };
        let output = match (&self.scores, declared, metadata.outputs.as_slice()) {
            (Some(name), ..) => name,
            (None, [only], _) => &only.output,
            (None, _, [only]) => &only.name,
            (None, _, outputs) => bail!(
                "the model has {} outputs: name the one with the scores with --scores",
                outputs.len()
            ),
        };
        Ok(vec![classes(output, top)])
    }
}

/// Returns the classes of each row of each output of which the request asks for them; none if it asks for none.
pub(super) fn of_response(
    response: &InferResponse,
    request: &RequestMessage,
) -> Option<Vec<Vec<Class>>> {
    let asked = request
        .outputs
        .iter()
        .filter(|output| output.classes.is_some());
    let asked: Vec<&str> = asked.map(|output| output.name.as_str()).collect();
    if asked.is_empty() {
        return None;
    }
    let outputs = response.outputs.iter();
    let outputs = outputs.filter(|output| asked.contains(&output.name()));
    let rows = outputs.flat_map(|output| {
        let texts = output.byte_strings().unwrap_or_default();
        let classes = texts
            .iter()
            .filter_map(|text| class_of(text))
            .collect::<Vec<_>>();
        let each = output.shape().dims().last().copied().unwrap_or(1);
        let each = usize::try_from(each).unwrap_or(1).max(1);
        let rows = classes.chunks(each).map(<[Class]>::to_vec);
        rows.collect::<Vec<_>>()
    });
    Some(rows.collect())
}

/// Reads a class of Triton's classification extension: `SCORE:INDEX` or `SCORE:INDEX:LABEL`.
fn class_of(text: &[u8]) -> Option<Class> {
    let text = String::from_utf8_lossy(text);
    let mut parts = text.splitn(3, ':');
    Some(Class {
        score: parts.next()?.parse().ok()?,
        index: parts.next()?.parse().ok()?,
        label: parts.next().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_may_have_colons() {
        let class = |index, label: Option<&str>, score| Class {
            index,
            label: label.map(str::to_owned),
            score,
        };
        assert_eq!(class_of(b"0.75:2"), Some(class(2, None, 0.75)));
        assert_eq!(
            class_of("-1.5:281:cat: Käthe".as_bytes()),
            Some(class(281, Some("cat: Käthe"), -1.5))
        );
        assert_eq!(class_of(b"cat"), None);
    }
}
