//! The flags by which people say what a model's file does not tell.

use std::{path::PathBuf, str::FromStr};

use packhorse_cluster::{Datatype, Dim, Program, Shape};

/// The flags about the signature of a file.
#[derive(clap::Args, Clone, Debug, Default)]
pub(in crate::commands) struct SignatureArgs {
    /// Input of a model's file, which need not be given where the file tells it; -1 is a size that varies
    #[arg(long = "input", value_name = "NAME=DATATYPE[SIZES]")]
    pub(super) inputs: Vec<GivenTensor>,
    /// Output of a model's file; without it the program is run for its outputs
    #[arg(long = "output", value_name = "NAME=DATATYPE[SIZES]")]
    pub(super) outputs: Vec<GivenTensor>,
    /// Most rows of a batch, 0 for a model without a batch dimension [default: what the file says, else 8, or 0 for a program that takes no batches]
    #[arg(long, value_name = "N")]
    pub(super) max_batch_size: Option<u32>,
    /// Do not run the program of a file to find its outputs
    #[arg(long)]
    pub(super) no_trial: bool,
    /// Folder with libtorch for the trial [default: that of packhorse setup, else where the system has it]
    #[arg(long, env = "PACKHORSE_LIBTORCH", value_name = "DIR")]
    pub(super) libtorch: Option<PathBuf>,
}

/// An input or output that a user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenTensor {
    pub(super) name: String,
    pub(super) datatype: Datatype,
    pub(super) shape: Vec<Dim>,
}

impl SignatureArgs {
    /// Returns flags that say nothing.
    pub(in crate::commands) fn none(libtorch: Option<PathBuf>) -> Self {
        Self {
            libtorch,
            ..Self::default()
        }
    }

    /// Returns the first flag about the signature that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--input", !self.inputs.is_empty()),
            ("--output", !self.outputs.is_empty()),
            ("--max-batch-size", self.max_batch_size.is_some()),
        ];
        flags
            .into_iter()
            .find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// Checks the limits of what is given.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (flag, tensors) in [("--input", &self.inputs), ("--output", &self.outputs)] {
            anyhow::ensure!(
                tensors.len() <= Program::MAX_TENSORS,
                "{flag} is given {} times, over the limit of {}",
                tensors.len(),
                Program::MAX_TENSORS
            );
            for (i, tensor) in tensors.iter().enumerate() {
                anyhow::ensure!(
                    !tensors[..i].iter().any(|other| other.name == tensor.name),
                    "{flag}: {:?} is given twice",
                    tensor.name
                );
            }
        }
        if let Some(rows) = self.max_batch_size {
            anyhow::ensure!(
                rows <= Program::MAX_BATCH_SIZE,
                "--max-batch-size: {rows} is over the limit of {}",
                Program::MAX_BATCH_SIZE
            );
        }
        Ok(())
    }
}

impl FromStr for GivenTensor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "expected NAME=DATATYPE[SIZES], for example 'image=FP32[-1,3,224,224]'".to_owned();
        let (name, rest) = text.split_once('=').ok_or_else(expected)?;
        let (datatype, sizes) = rest.split_once('[').ok_or_else(expected)?;
        let sizes = sizes.strip_suffix(']').ok_or_else(expected)?;
        let datatype = datatype.parse::<Datatype>().map_err(|e| e.to_string())?;
        let sizes = sizes.split(',').filter(|_| !sizes.trim().is_empty());
        let shape: Result<Vec<Dim>, String> = sizes
            .map(|size| {
                let size = size.trim();
                let number = size.parse::<i64>().ok();
                let dim = number.and_then(|number| Dim::try_from(number).ok());
                let dim = dim.filter(|dim| *dim != Dim::Fixed(0));
                dim.ok_or_else(|| {
                    format!(
                        "size {size:?}: expected a number of at least 1, or -1 for one that varies"
                    )
                })
            })
            .collect();
        let shape = shape?;
        if name.is_empty() {
            return Err(expected());
        }
        if shape.len() > Shape::MAX_RANK {
            return Err(format!(
                "{} sizes are over the limit of {}",
                shape.len(),
                Shape::MAX_RANK
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            datatype,
            shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_a_name_a_datatype_and_sizes() {
        let tensor: GivenTensor = "image=FP32[-1, 3,224]".parse().unwrap();
        assert_eq!(
            (tensor.name.as_str(), tensor.datatype),
            ("image", Datatype::Fp32)
        );
        assert_eq!(tensor.shape, [Dim::Any, Dim::Fixed(3), Dim::Fixed(224)]);
        assert_eq!("x=BOOL[]".parse::<GivenTensor>().unwrap().shape, []);
        for (text, problem) in [
            ("x", "expected NAME=DATATYPE[SIZES]"),
            ("=FP32[1]", "expected NAME=DATATYPE[SIZES]"),
            ("x=FP32", "expected NAME=DATATYPE[SIZES]"),
            ("x=FP32[1", "expected NAME=DATATYPE[SIZES]"),
            ("x=FP31[1]", "unknown datatype \"FP31\""),
            ("x=FP32[a]", "size \"a\": expected a number"),
            ("x=FP32[0]", "size \"0\": expected a number"),
            ("x=FP32[-2]", "size \"-2\": expected a number"),
            ("x=FP32[1,]", "size \"\": expected a number"),
        ] {
            let error = text.parse::<GivenTensor>().unwrap_err();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
        let many = format!("x=FP32[{}]", vec!["1"; 17].join(","));
        assert_eq!(
            many.parse::<GivenTensor>().unwrap_err(),
            "17 sizes are over the limit of 16"
        );
    }
}
