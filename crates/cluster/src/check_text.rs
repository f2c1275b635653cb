//! The check of a declared text against the inputs that its tokens become.

use crate::{Datatype, Dim, Program, TensorSpec, TextPreprocess, TokenTensor};

type Checked = Result<(), (&'static str, String)>;

impl TextPreprocess {
    /// Checks the declaration against the inputs that it fills.
    pub(crate) fn validate(&self, name: &str, program: &Program) -> Checked {
        if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
            let problem = "expected a name of 1 to 64 bytes without control characters";
            return Err(("kind", problem.to_owned()));
        }
        let most = Self::MAX_LENGTH;
        if !(1..=most).contains(&self.max_length) {
            return Err(("max_length", format!("expected 1 to {most} tokens")));
        }
        let count = |of| self.inputs.values().filter(|given| **given == of).count();
        if count(TokenTensor::Ids) != 1 {
            return Err(("inputs", "expected one input of ids".to_owned()));
        }
        for (input, of) in &self.inputs {
            let Some(spec) = program.inputs.iter().find(|spec| spec.name == *input) else {
                return Err(("inputs", format!("the model has no input {input:?}")));
            };
            self.validate_tensor(spec, *of, program)?;
        }
        Ok(())
    }

    fn validate_tensor(&self, spec: &TensorSpec, of: TokenTensor, program: &Program) -> Checked {
        let name = &spec.name;
        let is_number = matches!(spec.datatype, Datatype::Int64 | Datatype::Int32);
        // Masks are multiplied with.
        let is_mask =
            of == TokenTensor::Mask && matches!(spec.datatype, Datatype::Bool | Datatype::Fp32);
        if !is_number && !is_mask {
            let expected = match of {
                TokenTensor::Mask => "INT64, INT32, BOOL or FP32",
                TokenTensor::Ids | TokenTensor::TypeIds => "INT64 or INT32",
            };
            let problem = format!(
                "tokens become {expected}, and the input {name:?} is {}",
                spec.datatype
            );
            return Err(("inputs", problem));
        }
        let tokens = match (spec.shape.as_slice(), program.batches()) {
            ([_, tokens], true) | ([Dim::Fixed(1), tokens] | [tokens], false) => *tokens,
            _ => {
                let shape = spec.shape_text();
                let problem = format!(
                    "tokens are one dimension of each row, and the input {name:?} is {shape}"
                );
                return Err(("inputs", problem));
            }
        };
        let axis = spec.shape.len() - 1;
        let bound = spec.max_shape.as_ref().and_then(|max| max.get(axis));
        for limit in [Some(&tokens), bound].into_iter().flatten() {
            if let Dim::Fixed(limit) = *limit
                && u64::from(self.max_length) > limit
            {
                let problem = format!(
                    "{} tokens are more than the {limit} that the input {name:?} takes",
                    self.max_length
                );
                return Err(("max_length", problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Processing, Program};

    fn program(inputs: &str, max_batch_size: u32) -> Program {
        let outputs = r#"[{"name":"y","datatype":"FP32","shape":[-1,4]},{"name":"z","datatype":"FP32","shape":[-1,-1,4]},{"name":"n","datatype":"INT64","shape":[-1,4]}]"#;
        Program {
            model: "m:1".parse().unwrap(),
            artifact: crate::ArtifactDigest::from_sha256([0; 32]),
            max_batch_size,
            inputs: serde_json::from_str(inputs).unwrap(),
            outputs: serde_json::from_str(outputs).unwrap(),
        }
    }

    const BERT: &str = r#"[{"name":"ids","datatype":"INT64","shape":[-1,-1],"max_shape":[-1,512]},{"name":"mask","datatype":"INT64","shape":[-1,-1]}]"#;

    fn problem(program: &Program, preprocess: &str, postprocess: &str) -> Option<String> {
        let read = serde_json::from_str::<Processing>(&format!(
            r#"{{"preprocess":{preprocess},"postprocess":{postprocess}}}"#
        ));
        let checked = read.map_err(|e| e.to_string());
        checked
            .and_then(|read| read.validate(program).map_err(|e| e.to_string()))
            .err()
    }

    #[test]
    fn a_declaration_is_read_back_as_it_is_written() {
        let text = r#"{"preprocess":{"text":{"kind":"text","tokenizer":"tokenizer.json","max_length":512,"truncate":true,"inputs":{"ids":"ids","mask":"mask","types":"type_ids"}}},"postprocess":{"y":{"pool":"mean","normalize":true}}}"#;
        let read: Processing = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.tokenizer(), None);
        let digest = format!("sha256:{}", "5".repeat(64));
        let stored: Processing =
            serde_json::from_str(&text.replace("tokenizer.json", &digest)).unwrap();
        assert_eq!(stored.tokenizer().unwrap().to_string(), digest);
    }

    #[test]
    fn errors_name_the_field_and_the_limit() {
        let bert = program(BERT, 8);
        let text =
            |rest: &str| format!(r#"{{"text":{{"kind":"text","tokenizer":"t.json",{rest}}}}}"#);
        let inputs = r#""inputs":{"ids":"ids","mask":"mask"}"#;
        let right = format!(r#""max_length":512,{inputs}"#);
        assert_eq!(problem(&bert, &text(&right), "{}"), None);
        for (rest, expected) in [
            (
                format!(r#""max_length":0,{inputs}"#),
                "preprocess.text.max_length: expected 1 to 32768 tokens",
            ),
            (
                format!(r#""max_length":513,{inputs}"#),
                "preprocess.text.max_length: 513 tokens are more than the 512 that the input \"ids\" takes",
            ),
            (
                r#""max_length":9,"inputs":{"mask":"mask"}"#.to_owned(),
                "preprocess.text.inputs: expected one input of ids",
            ),
            (
                r#""max_length":9,"inputs":{"ids":"ids","x":"mask"}"#.to_owned(),
                "preprocess.text.inputs: the model has no input \"x\"",
            ),
        ] {
            assert_eq!(
                problem(&bert, &text(&rest), "{}").as_deref(),
                Some(expected)
            );
        }
        let of = |inputs: &str, batch| {
            problem(
                &program(inputs, batch),
                &text(r#""max_length":9,"inputs":{"ids":"ids"}"#),
                "{}",
            )
        };
        let ids = |datatype: &str, shape: &str| {
            format!(r#"[{{"name":"ids","datatype":"{datatype}","shape":{shape}}}]"#)
        };
        assert_eq!(of(&ids("INT32", "[-1,9]"), 8), None);
        assert_eq!(of(&ids("INT64", "[1,-1]"), 0), None);
        assert_eq!(of(&ids("INT64", "[-1]"), 0), None);
        assert_eq!(
            of(&ids("FP32", "[-1,-1]"), 8).unwrap(),
            "preprocess.text.inputs: tokens become INT64 or INT32, and the input \"ids\" is FP32"
        );
        assert_eq!(
            of(&ids("INT64", "[-1,2,9]"), 8).unwrap(),
            "preprocess.text.inputs: tokens are one dimension of each row, and the input \"ids\" is [-1,2,9]"
        );
        assert_eq!(
            of(&ids("INT64", "[-1,8]"), 8).unwrap(),
            "preprocess.text.max_length: 9 tokens are more than the 8 that the input \"ids\" takes"
        );
        let own =
            r#"{"ids":{"kind":"text","tokenizer":"t.json","max_length":9,"inputs":{"ids":"ids"}}}"#;
        assert_eq!(
            problem(&bert, own, "{}").unwrap(),
            "preprocess.ids.kind: a text has a name of its own, and this is an input of the model"
        );
        let two = r#"{"a":{"kind":"text","tokenizer":"t.json","max_length":9,"inputs":{"ids":"ids"}},"b":{"kind":"text","tokenizer":"t.json","max_length":9,"inputs":{"ids":"ids"}}}"#;
        assert_eq!(
            problem(&bert, two, "{}").unwrap(),
            "preprocess.b.kind: a model has one text"
        );
    }

    #[test]
    fn an_embedding_is_one_vector_for_each_row_of_a_text() {
        let bert = program(BERT, 8);
        let text = r#"{"text":{"kind":"text","tokenizer":"t.json","max_length":9,"inputs":{"ids":"ids"}}}"#;
        for (post, expected) in [
            (r#"{"y":{"normalize":true}}"#, None),
            (r#"{"z":{"pool":"cls"}}"#, None),
            (
                r#"{"z":{"normalize":true}}"#,
                Some(
                    "postprocess.z.pool: missing: the output \"z\" is [-1,-1,4], and an embedding is one vector for each row",
                ),
            ),
            (
                r#"{"y":{"pool":"mean"}}"#,
                Some(
                    "postprocess.y.pool: the output \"y\" is [-1,4], and pooling takes a vector for each token of a row",
                ),
            ),
            (
                r#"{"n":{"normalize":true}}"#,
                Some(
                    "postprocess.n.normalize: embeddings are FP32, FP16, BF16 or FP64, and the output \"n\" is INT64",
                ),
            ),
        ] {
            assert_eq!(problem(&bert, text, post).as_deref(), expected, "{post}");
        }
        assert_eq!(
            problem(&bert, "{}", r#"{"y":{"normalize":true}}"#).unwrap(),
            "postprocess.y.pool: an embedding is of a text, and preprocess declares none"
        );
        let one = Program {
            outputs: serde_json::from_str(r#"[{"name":"y","datatype":"FP32","shape":[1,4]}]"#)
                .unwrap(),
            ..program(r#"[{"name":"ids","datatype":"INT64","shape":[1,-1]}]"#, 0)
        };
        assert_eq!(problem(&one, text, r#"{"y":{"normalize":true}}"#), None);
        for (post, expected) in [
            (
                r#"{"y":{"normalize":true,"top_k":1}}"#,
                "pool and normalize are of embeddings",
            ),
            (r#"{"y":{"softmax":true}}"#, "missing field `top_k`"),
            (
                r#"{"y":{}}"#,
                "expected top_k for classes, or pool or normalize for an embedding",
            ),
            (r#"{"y":{"pool":"max"}}"#, "unknown variant `max`"),
        ] {
            let problem = problem(&bert, text, post).unwrap();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}
