//! The served models, which `python/models.py` makes once per run.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use packhorse_api::ModelRegistration;
use packhorse_cluster::ModelName;

use crate::{
    host::{FP32_ONLY, Host},
    process::RunningProgram,
    report::Section,
};

/// One model of each kind: residual, depthwise, transformer.
pub(crate) const MAIN_MODELS: [&str; 3] = ["resnet50", "mobilenet_v2", "bert"];
/// The other models of the thesis' table A.1, smaller ones first.
pub(crate) const OTHER_MODELS: [&str; 10] = [
    "alexnet",
    "densenet121",
    "vgg19",
    "efficientnet_b7",
    "inception_v3",
    "resnext50_32x4d",
    "gpt2",
    "t5",
    "xlnet",
    "bloom_560",
];

const SCRIPT: &str = include_str!("../python/models.py");
/// The time limit for making models: one of the larger models takes a minute on a slow disk.
const LIMIT: Duration = Duration::from_mins(10);
/// The largest batch size of the thesis' profiles, and of the small models.
const MAX_BATCH_SIZES: [u32; 2] = [128, 8];
/// The numbers of rows of the examples.
pub(crate) const EXAMPLE_ROWS: [u32; 2] = [1, 4];

/// A model's files.
pub(crate) struct Model {
    /// The model's name in the thesis.
    pub(crate) name: &'static str,
    /// The signature and the limits.
    pub(crate) registration: ModelRegistration,
    folder: PathBuf,
}

/// An input with the output of eager PyTorch.
pub(crate) struct Example {
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<f32>,
}

impl Model {
    /// Returns the same model under another name.
    pub(crate) fn renamed(&self, name: ModelName) -> Self {
        let registration = ModelRegistration {
            name,
            ..self.registration.clone()
        };
        Self {
            name: self.name,
            registration,
            folder: self.folder.clone(),
        }
    }

    /// Returns the path of the TorchScript file.
    pub(crate) fn artifact(&self) -> PathBuf {
        self.folder.join("model.pt")
    }

    /// Returns the path of the registration.
    pub(crate) fn registration_file(&self) -> PathBuf {
        self.folder.join("model.json")
    }

    /// Returns the path of the profile that this host measured, which later runs with the same work folder use again.
    pub(crate) fn profile_file(&self) -> PathBuf {
        self.folder.join("profile.csv")
    }

    /// Reads the example with a number of rows, one of [`EXAMPLE_ROWS`].
    pub(crate) fn example(&self, rows: u32) -> anyhow::Result<Example> {
        let read = |what: &str| {
            let path = self.folder.join(format!("example-{rows}-{what}.bin"));
            fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        Ok(Example {
            input: read("input")?,
            output: floats(&read("output")?),
        })
    }
}

/// Decodes little-endian FP32.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values
        .iter()
        .map(|value| f32::from_le_bytes(*value))
        .collect()
}

/// Makes the models that do not exist yet. Returns the models, and the reasons why others could not be made.
pub(crate) fn make_models(
    host: &Host,
    names: &[&'static str],
) -> anyhow::Result<(Vec<Model>, BTreeMap<String, String>)> {
    let folder = host.models_folder();
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let is_missing = |name: &&&str| !folder.join(name).join("model.pt").exists();
    let missing: Vec<&str> = names.iter().filter(is_missing).copied().collect();
    let mut failed = BTreeMap::new();
    if !missing.is_empty() {
        let script = folder.join("models.py");
        fs::write(&script, SCRIPT).with_context(|| format!("write {}", script.display()))?;
        let mut python = host.script(&script);
        python.arg(&folder).args(["--device", host.torch_device()]);
        python.arg("--max-batch-size");
        python.arg(MAX_BATCH_SIZES[usize::from(host.quick)].to_string());
        if host.quick {
            python.arg("--tiny");
        }
        for rows in EXAMPLE_ROWS {
            python.args(["--rows", &rows.to_string()]);
        }
        python.args(&missing).envs(host.first_device());
        python.envs([FP32_ONLY]);
        let printed = RunningProgram::start("models", &mut python, &folder)?.finish(LIMIT)?;
        failed = serde_json::from_str(&printed)
            .with_context(|| format!("read what models.py printed: {printed}"))?;
    }
    let made = names.iter().filter(|name| !failed.contains_key(**name));
    let models = made
        .map(|name| read(folder.join(name), name))
        .collect::<anyhow::Result<_>>()?;
    Ok((models, failed))
}

/// Makes a model of a part, or adds the reason why there is none to the part's section: no time is left, or it cannot be made here.
pub(crate) fn make_or_report(
    host: &Host,
    name: &'static str,
    section: &mut Section,
) -> anyhow::Result<Option<Model>> {
    if host.is_out_of_time() {
        section.out_of_time(name);
        return Ok(None);
    }
    let (mut models, missing) = make_models(host, &[name])?;
    let model = models.pop();
    if model.is_none() {
        section.unavailable(name, missing.get(name).cloned().unwrap_or_default());
    }
    Ok(model)
}

/// Makes a model. An error if it cannot be made.
pub(crate) fn make_model(host: &Host, name: &'static str) -> anyhow::Result<Model> {
    let (mut models, failed) = make_models(host, &[name])?;
    match models.pop() {
        Some(model) => Ok(model),
        None => bail!("{name} cannot be made: {failed:?}"),
    }
}

fn read(folder: PathBuf, name: &'static str) -> anyhow::Result<Model> {
    let path = folder.join("model.json");
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let registration = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    Ok(Model {
        name,
        registration,
        folder,
    })
}
