//! The check of what is declared of inputs and outputs against their tensors.

use std::collections::BTreeSet;

use crate::{
    Classes, Datatype, Dim, Embedding, ImagePreprocess, ModelSpecError, Postprocess, Preprocess,
    Processing, Program, Resize, TensorSpec,
    preprocess::{one, ones},
};

impl Processing {
    /// Checks what is declared against the tensors that it is of.
    ///
    /// # Errors
    /// Names the first field that does not suit its tensor, or is out of its limits.
    pub fn validate(&self, program: &Program) -> Result<(), ModelSpecError> {
        let error = |side: &str, name: &str, (field, problem): (&str, String)| ModelSpecError {
            field: format!("{side}.{name}.{field}"),
            problem,
        };
        let mut filled = BTreeSet::new();
        for (name, declared) in &self.preprocess {
            let spec = program.inputs.iter().find(|spec| spec.name == *name);
            let checked = match (declared, spec) {
                (Preprocess::Image(_), None) => return Err(unknown("preprocess", name, "input")),
                (Preprocess::Image(image), Some(spec)) => {
                    filled.insert(name);
                    image.validate(spec, program)
                }
                (Preprocess::Text(_), Some(_)) => Err((
                    "kind",
                    "a text has a name of its own, and this is an input of the model".to_owned(),
                )),
                (Preprocess::Text(text), None) => text.validate(name, program),
            };
            checked.map_err(|problem| error("preprocess", name, problem))?;
        }
        let texts = self.preprocess.iter();
        let texts = texts.filter(|(_, declared)| matches!(declared, Preprocess::Text(_)));
        for (index, (name, declared)) in texts.enumerate() {
            let Preprocess::Text(text) = declared else {
                continue;
            };
            let twice = text.inputs.keys().find(|input| filled.contains(input));
            let problem = match twice {
                _ if index > 0 => Some(("kind", "a model has one text".to_owned())),
                Some(input) => Some((
                    "inputs",
                    format!("{input:?} is filled with a picture already"),
                )),
                None => None,
            };
            if let Some(problem) = problem {
                return Err(error("preprocess", name, problem));
            }
        }
        for (name, declared) in &self.postprocess {
            let Some(spec) = program.outputs.iter().find(|spec| spec.name == *name) else {
                return Err(unknown("postprocess", name, "output"));
            };
            let checked = match declared {
                Postprocess::Classes(classes) => classes.validate(spec),
                Postprocess::Embedding(embedding) => {
                    embedding.validate(spec, program, self.text().is_some())
                }
            };
            checked.map_err(|problem| error("postprocess", name, problem))?;
        }
        Ok(())
    }
}

impl ImagePreprocess {
    /// Checks the declaration against the tensor that it fills.
    fn validate(&self, spec: &TensorSpec, program: &Program) -> Result<(), (&'static str, String)> {
        let sides = |field, [height, width]: [u32; 2]| {
            let is_side = |side| (1..=Self::MAX_SIDE).contains(&side);
            if is_side(height) && is_side(width) {
                return Ok(());
            }
            let most = Self::MAX_SIDE;
            Err((field, format!("expected 1 to {most} pixels a side")))
        };
        let resized = match self.resize {
            Resize::Shortest(side) => [side, side],
            Resize::Exact(size) => size,
        };
        sides("resize", resized)?;
        match (self.crop, self.resize) {
            (None, Resize::Exact(_)) => {}
            (None, Resize::Shortest(_)) => {
                let problem = "missing: a picture whose shorter side is given has no fixed size";
                return Err(("crop", problem.to_owned()));
            }
            (Some(crop), _) => {
                sides("crop", crop)?;
                if crop
                    .iter()
                    .zip(&resized)
                    .any(|(crop, resized)| crop > resized)
                {
                    let ([height, width], [most_height, most_width]) = (crop, resized);
                    let problem = format!(
                        "{height} x {width} is larger than the resized picture of {most_height} x {most_width}"
                    );
                    return Err(("crop", problem));
                }
            }
        }
        let in_range = |number: &f64| number.is_finite() && number.abs() <= 1e6;
        if !in_range(&self.rescale) || self.rescale <= 0.0 {
            let problem = "expected a number above 0 and at most 1000000".to_owned();
            return Err(("rescale", problem));
        }
        if !self.mean.iter().all(in_range) {
            let problem = "expected three numbers of at most 1000000".to_owned();
            return Err(("mean", problem));
        }
        if !self.std.iter().all(|std| in_range(std) && *std >= 1e-6) {
            let problem = "expected three numbers from 0.000001 to 1000000".to_owned();
            return Err(("std", problem));
        }
        self.validate_tensor(spec, program)
            .map_err(|problem| ("kind", problem))
    }

    fn validate_tensor(&self, spec: &TensorSpec, program: &Program) -> Result<(), String> {
        match spec.datatype {
            Datatype::Fp32 | Datatype::Fp16 => {}
            Datatype::Uint8 => {
                let plain = Self {
                    rescale: one(),
                    mean: [0.0; 3],
                    std: ones(),
                    ..self.clone()
                };
                if *self != plain {
                    let problem = "an input of UINT8 takes the pixels as they are: expected no rescale, mean and std";
                    return Err(problem.to_owned());
                }
            }
            other => {
                return Err(format!(
                    "a picture becomes FP32, FP16 or UINT8, and the input {:?} is {other}",
                    spec.name
                ));
            }
        }
        let row = self.row_dims();
        let dims = spec.shape.as_slice();
        let fits = match (dims, program.batches()) {
            ([_, dims @ ..], true) | ([Dim::Fixed(1), dims @ ..], false) if dims.len() == 3 => {
                fits(dims, row)
            }
            (dims, false) => fits(dims, row),
            _ => false,
        };
        if fits {
            return Ok(());
        }
        let [a, b, c] = row;
        Err(format!(
            "a picture becomes [{a}, {b}, {c}] in each row, and the input {:?} is {}",
            spec.name,
            spec.shape_text()
        ))
    }
}

/// Returns true if a shape takes these dimensions.
fn fits(shape: &[Dim], dims: [u64; 3]) -> bool {
    shape.len() == dims.len() && { shape.iter().zip(dims) }
        .all(|(dim, size)| matches!(dim, Dim::Any) || *dim == Dim::Fixed(size))
}

impl Classes {
    fn validate(&self, spec: &TensorSpec) -> Result<(), (&'static str, String)> {
        if !spec.datatype.is_float() {
            let problem = format!(
                "scores are FP32, FP16, BF16 or FP64, and the output {:?} is {}",
                spec.name, spec.datatype
            );
            return Err(("top_k", problem));
        }
        if !(1..=Self::MAX_CLASSES).contains(&self.top_k) {
            let most = Self::MAX_CLASSES;
            return Err(("top_k", format!("expected 1 to {most} classes")));
        }
        let labels = self.labels.len();
        if labels > Self::MAX_LABELS {
            let most = Self::MAX_LABELS;
            return Err((
                "labels",
                format!("{labels} names are over the limit of {most}"),
            ));
        }
        let is_bad = |label: &String| {
            label.len() > Self::MAX_LABEL_BYTES || label.chars().any(char::is_control)
        };
        if let Some(index) = self.labels.iter().position(is_bad) {
            let most = Self::MAX_LABEL_BYTES;
            let problem =
                format!("name {index}: expected at most {most} bytes without control characters");
            return Err(("labels", problem));
        }
        match spec.shape.last() {
            Some(Dim::Fixed(classes)) if labels > 0 && *classes != labels as u64 => Err((
                "labels",
                format!(
                    "{labels} names for the {classes} classes of the output {:?}",
                    spec.name
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl Embedding {
    fn validate(
        self,
        spec: &TensorSpec,
        program: &Program,
        has_text: bool,
    ) -> Result<(), (&'static str, String)> {
        if !spec.datatype.is_float() {
            let problem = format!(
                "embeddings are FP32, FP16, BF16 or FP64, and the output {:?} is {}",
                spec.name, spec.datatype
            );
            return Err(("normalize", problem));
        }
        let dims = match (spec.shape.as_slice(), program.batches()) {
            ([_, row @ ..], true) | ([Dim::Fixed(1), row @ ..], false) if !row.is_empty() => {
                row.len()
            }
            (row, _) => row.len(),
        };
        let shape = spec.shape_text();
        match (self.pool, dims) {
            (None, 1) | (Some(_), 2) if !has_text => Err((
                "pool",
                "an embedding is of a text, and preprocess declares none".to_owned(),
            )),
            (None, 1) | (Some(_), 2) => Ok(()),
            (None, _) => Err((
                "pool",
                format!(
                    "missing: the output {:?} is {shape}, and an embedding is one vector for each row",
                    spec.name
                ),
            )),
            (Some(_), _) => Err((
                "pool",
                format!(
                    "the output {:?} is {shape}, and pooling takes a vector for each token of a row",
                    spec.name
                ),
            )),
        }
    }
}

fn unknown(field: &str, name: &str, side: &str) -> ModelSpecError {
    let shown: String = name.chars().take(64).collect();
    ModelSpecError {
        field: field.to_owned(),
        problem: format!("the model has no {side} {shown:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(datatype: &str, shape: &str, max_batch_size: u32) -> Program {
        let tensor = |name, datatype, shape| {
            format!(r#"[{{"name":"{name}","datatype":"{datatype}","shape":{shape}}}]"#)
        };
        let inputs = tensor("x", datatype, shape);
        let outputs = tensor("y", "FP32", "[-1,3]");
        Program {
            model: "m:1".parse().unwrap(),
            artifact: crate::ArtifactDigest::from_sha256([0; 32]),
            max_batch_size,
            inputs: serde_json::from_str(&inputs).unwrap(),
            outputs: serde_json::from_str(&outputs).unwrap(),
        }
    }

    fn problem(program: &Program, preprocess: &str, postprocess: &str) -> Option<String> {
        let processing = Processing {
            preprocess: serde_json::from_str(preprocess).unwrap(),
            postprocess: serde_json::from_str(postprocess).unwrap(),
        };
        let checked = processing.validate(program);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn a_declaration_is_read_back_as_it_is_written_and_unknown_fields_are_refused() {
        let text = r#"{"kind":"image","resize":{"shortest":256},"filter":"bicubic","crop":[224,224],"crop_rounding":"floor","channels":"BGR","rescale":0.5,"mean":[1.0,2.0,3.0],"std":[4.0,5.0,6.0],"layout":"NHWC","exif":true}"#;
        let declared: Preprocess = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&declared).unwrap(), text);
        for bad in [
            r#"{"kind":"image","resize":{"shortest":256},"size":3}"#,
            r#"{"kind":"image","resize":{"longest":256}}"#,
            r#"{"kind":"image","resize":{"shortest":256},"filter":"box"}"#,
            r#"{"kind":"sound"}"#,
            r#"{"resize":{"shortest":256}}"#,
        ] {
            assert!(serde_json::from_str::<Preprocess>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_field_and_the_limit() {
        let fp32 = program("FP32", "[-1,3,224,224]", 8);
        let image = |rest: &str| format!(r#"{{"x":{{"kind":"image",{rest}}}}}"#);
        let crop = r#""resize":{"shortest":256},"crop":[224,224]"#;
        assert_eq!(problem(&fp32, &image(crop), "{}"), None);
        for (rest, expected) in [
            (
                r#""resize":{"shortest":0},"crop":[1,1]"#,
                "preprocess.x.resize: expected 1 to 8192 pixels a side",
            ),
            (
                r#""resize":{"exact":[224,9000]}"#,
                "preprocess.x.resize: expected 1 to 8192 pixels a side",
            ),
            (
                r#""resize":{"shortest":256}"#,
                "preprocess.x.crop: missing: a picture whose shorter side is given has no fixed size",
            ),
            (
                r#""resize":{"shortest":200},"crop":[224,224]"#,
                "preprocess.x.crop: 224 x 224 is larger than the resized picture of 200 x 200",
            ),
            (
                &format!(r#"{crop},"rescale":0"#),
                "preprocess.x.rescale: expected a number above 0 and at most 1000000",
            ),
            (
                &format!(r#"{crop},"mean":[0,0,1e9]"#),
                "preprocess.x.mean: expected three numbers of at most 1000000",
            ),
            (
                &format!(r#"{crop},"std":[1,0,1]"#),
                "preprocess.x.std: expected three numbers from 0.000001 to 1000000",
            ),
            (
                &format!(r#"{crop},"layout":"NHWC""#),
                r#"preprocess.x.kind: a picture becomes [224, 224, 3] in each row, and the input "x" is [-1,3,224,224]"#,
            ),
        ] {
            assert_eq!(
                problem(&fp32, &image(rest), "{}").as_deref(),
                Some(expected)
            );
        }
        let of = |datatype, rest: &str| {
            problem(&program(datatype, "[-1,3,-1,-1]", 8), &image(rest), "{}")
        };
        assert_eq!(of("FP16", crop), None);
        assert_eq!(of("UINT8", crop), None);
        assert_eq!(
            of("UINT8", &format!(r#"{crop},"rescale":0.5"#)).unwrap(),
            "preprocess.x.kind: an input of UINT8 takes the pixels as they are: expected no rescale, mean and std"
        );
        assert_eq!(
            of("INT64", crop).unwrap(),
            r#"preprocess.x.kind: a picture becomes FP32, FP16 or UINT8, and the input "x" is INT64"#
        );
        assert_eq!(
            problem(
                &fp32,
                r#"{"z":{"kind":"image","resize":{"exact":[1,1]}}}"#,
                "{}"
            )
            .unwrap(),
            r#"preprocess: the model has no input "z""#
        );
    }

    #[test]
    fn a_model_without_a_batch_dimension_takes_one_picture() {
        let image = r#"{"x":{"kind":"image","resize":{"exact":[4,6]}}}"#;
        for (shape, fits) in [("[3,4,6]", true), ("[1,3,4,6]", true), ("[2,3,4,6]", false)] {
            let problem = problem(&program("FP32", shape, 0), image, "{}");
            assert_eq!(problem.is_none(), fits, "{shape}: {problem:?}");
        }
    }

    #[test]
    fn classes_have_as_many_names_as_the_output_has_scores() {
        let program = program("FP32", "[-1,3]", 8);
        let of = |post: &str| problem(&program, "{}", &format!(r#"{{"y":{post}}}"#));
        assert_eq!(of(r#"{"top_k":5,"labels":["a","b","c"]}"#), None);
        assert_eq!(of(r#"{"top_k":1,"softmax":true}"#), None);
        for (post, expected) in [
            (
                r#"{"top_k":0}"#,
                "postprocess.y.top_k: expected 1 to 1000 classes",
            ),
            (
                r#"{"top_k":1,"labels":["a"]}"#,
                r#"postprocess.y.labels: 1 names for the 3 classes of the output "y""#,
            ),
            (
                r#"{"top_k":1,"labels":["a","b\n","c"]}"#,
                "postprocess.y.labels: name 1: expected at most 256 bytes without control characters",
            ),
        ] {
            assert_eq!(of(post).as_deref(), Some(expected));
        }
    }
}
