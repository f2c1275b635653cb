//! `packhorse infer --image` and `--text`: inputs as they are, of which the gateway makes what the model's registration declares.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use packhorse_cluster::Shape;
use packhorse_protocol::{ModelMetadata, RawInputKind, RawInputMetadata, Tensor};
use packhorse_terminal::files::read_file;

/// The flags of `packhorse infer` for inputs as they are.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RawInputArgs {
    /// Send this JPEG, PNG or WebP as it is, to a model that declares how a picture becomes its input; several are the rows of a request
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Send this text as it is, to a model that declares how a text becomes its inputs; several are the rows of a request
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// Input that --image is for [default: the only one that takes pictures]
    #[arg(long, value_name = "NAME", requires = "image")]
    input_name: Option<String>,
}

impl RawInputArgs {
    /// Returns true if there are any.
    pub(super) fn are_given(&self) -> bool {
        !self.image.is_empty() || !self.text.is_empty()
    }

    /// Returns the tensors of the pictures and of the texts.
    pub(super) fn tensors(&self, metadata: &ModelMetadata) -> anyhow::Result<Vec<Tensor>> {
        let mut tensors = Vec::new();
        if !self.image.is_empty() {
            let declared = of_kind(metadata, RawInputKind::Image);
            let name = match (&self.input_name, declared.as_slice()) {
                (_, []) => bail!("{}", declares_none(metadata, "a picture becomes its input")),
                (None, [only]) => &only.name,
                (Some(name), names) if names.iter().any(|input| input.name == *name) => name,
                (Some(name), names) => {
                    bail!(
                        "input {name:?} takes no pictures; those that do are {}",
                        list(names)
                    )
                }
                (None, names) => bail!(
                    "several inputs take pictures, {}: name one with --input-name",
                    list(names)
                ),
            };
            let files = self.image.iter().map(|path| read_file(path));
            tensors.push(rows(name, &files.collect::<anyhow::Result<Vec<_>>>()?)?);
        }
        if !self.text.is_empty() {
            let declared = of_kind(metadata, RawInputKind::Text);
            let [only] = declared.as_slice() else {
                bail!("{}", declares_none(metadata, "a text becomes its inputs"));
            };
            tensors.push(rows(&only.name, &self.text)?);
        }
        Ok(tensors)
    }
}

fn of_kind(metadata: &ModelMetadata, kind: RawInputKind) -> Vec<&RawInputMetadata> {
    let inputs = metadata.raw_inputs.iter();
    inputs.filter(|input| input.kind == kind).collect()
}

fn list(inputs: &[&RawInputMetadata]) -> String {
    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    names.join(", ")
}

fn declares_none(metadata: &ModelMetadata, what: &str) -> String {
    format!(
        "model {:?} does not declare how {what} (`preprocess` in its registration)",
        metadata.name
    )
}

fn rows<T: AsRef<[u8]>>(name: &str, elements: &[T]) -> anyhow::Result<Tensor> {
    let shape = Shape::new(&[elements.len().try_into()?])?;
    Tensor::from_byte_strings(name, shape, elements).with_context(|| format!("input {name:?}"))
}
