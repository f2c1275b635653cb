//! A folder of a repository of Triton: `config.pbtxt`, and the file of each version in a folder with its number.

use std::{
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_artifact::Artifact;
use packhorse_terminal::files::{open_regular_file, read_regular_file};
use packhorse_triton::{CONFIG_LIMIT, TritonModel};
use serde_json::{Map, Value};

use super::version_folders::{PROGRAMS, version_folders};

/// The name of the configuration.
pub(crate) const CONFIG: &str = "config.pbtxt";

/// A model of a repository of Triton.
#[derive(Debug)]
pub(crate) struct TritonFolder {
    /// The served versions, ascending.
    pub(crate) versions: Vec<TritonVersion>,
    /// What of the configuration is left out.
    pub(crate) notices: Vec<String>,
}

/// A version of a model.
#[derive(Debug)]
pub(crate) struct TritonVersion {
    pub(crate) number: u32,
    /// The registration without name, version and artifact.
    pub(crate) registration: Map<String, Value>,
    /// The program.
    pub(crate) file: PathBuf,
}

impl TritonFolder {
    /// Reads the folder of a model. `None` if it has no configuration.
    ///
    /// # Errors
    /// If it cannot be read, or asks for what is not served.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let text = match read_regular_file(&folder.join(CONFIG), CONFIG_LIMIT as u64) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {CONFIG}"))?,
        };
        let text = String::from_utf8(text).with_context(|| format!("cannot read {CONFIG}"))?;
        let name = folder.file_name().and_then(OsStr::to_str);
        let name = name.context("the folder's name is not a model's name")?;
        let TritonModel {
            registration,
            file_name,
            versions,
            notices,
        } = packhorse_triton::read(&text, name)?;
        let numbered = version_folders(folder)?;
        let there: Vec<u32> = numbered.iter().map(|(version, _)| *version).collect();
        let served = versions.among(&there);
        ensure!(
            !served.is_empty(),
            "{CONFIG}: version_policy: of the versions {there:?} it chooses none"
        );
        let chosen = numbered
            .into_iter()
            .filter(|(version, _)| served.contains(version));
        let versions = chosen.map(|(number, folder)| {
            let file = program(&folder, file_name.as_deref())?;
            let mut registration = registration.clone();
            let inputs = registration.get_mut("inputs");
            if let Some(inputs) = inputs.and_then(Value::as_array_mut) {
                order_by_program(inputs, &file);
            }
            Ok(TritonVersion {
                number,
                registration,
                file,
            })
        });
        Ok(Some(Self {
            versions: versions.collect::<anyhow::Result<_>>()?,
            notices,
        }))
    }
}

/// Puts inputs that are named like the arguments of the program into their order. Triton hands them over by their names, a registration by their order.
fn order_by_program(inputs: &mut [Value], program: &Path) {
    let read = open_regular_file(program).ok().map(Artifact::read);
    let Some(Ok(Artifact { signature, .. })) = read else {
        // What is wrong with the file is said when it is registered.
        return;
    };
    let arguments = signature.inputs.unwrap_or_default();
    let place = |input: &Value| {
        let mut names = arguments.iter().map(|argument| argument.name.as_deref());
        names.position(|name| name.is_some() && name == input["name"].as_str())
    };
    if inputs.iter().all(|input| place(input).is_some()) {
        inputs.sort_by_key(place);
    }
}

/// Returns the file of a version.
fn program(folder: &Path, name: Option<&str>) -> anyhow::Result<PathBuf> {
    let names = name.map_or(PROGRAMS.to_vec(), |name| vec![name]);
    let files = names.iter().map(|name| folder.join(name));
    let Some(file) = files.into_iter().find(|file| file.exists()) else {
        bail!("{}: there is no {}", folder.display(), names.join(" or "));
    };
    ensure!(file.is_file(), "{} is not a regular file", file.display());
    Ok(file)
}
