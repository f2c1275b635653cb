//! `packhorse import`: writes the models of a repository of Triton as folders of a model repository.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use packhorse_terminal::{context::Context, count, files::folders, output};
use serde::Serialize;
use serde_json::Value;

use super::triton_folder::{CONFIG, TritonFolder, TritonVersion};

#[derive(clap::Args)]
#[command(after_help = "\
DIR is a model repository of Triton: NAME/config.pbtxt, and NAME/VERSION/model.pt or model.pt2. Of each model that is a program of \
PyTorch a folder of OUT is made, with a model.json in place of the configuration. Its files are links to those of DIR where both are \
on one file system, else copies. What the configuration says and is not taken over is told; models of other runtimes, ensembles and \
what would change answers are refused by name. A model whose folder exists is left alone.

`packhorse serve DIR` serves such a repository as it is.

The exit status is 1 if a model is not imported; the others are.

Examples:
  packhorse import /models models
  packhorse import /models models --json")]
pub(crate) struct ImportArgs {
    /// The repository of Triton
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// The model repository, which is made if it is not there
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

/// What was imported.
#[derive(Serialize)]
struct Imported {
    models: Vec<ImportedModel>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct ImportedModel {
    name: String,
    folder: PathBuf,
    versions: Vec<u32>,
    notices: Vec<String>,
}

#[derive(Serialize)]
struct Problem {
    place: String,
    problem: String,
}

impl ImportArgs {
    pub(super) fn run(&self, context: &Context) -> anyhow::Result<()> {
        let shown = self.from.display();
        let found = folders(&self.from).with_context(|| format!("cannot read {shown}"))?;
        ensure!(
            !found.is_empty(),
            "{shown} has no folders: expected a model repository of Triton, NAME/{CONFIG}"
        );
        fs::create_dir_all(&self.to)
            .with_context(|| format!("cannot write into {}", self.to.display()))?;
        let mut imported = Imported {
            models: Vec::new(),
            problems: Vec::new(),
        };
        for folder in found {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            match self.import(&folder, &name) {
                Ok(model) => imported.models.push(model),
                Err(error) => imported.problems.push(Problem {
                    place: name.into_owned(),
                    problem: format!("{error:#}"),
                }),
            }
        }
        if context.json() {
            output::print_json(&imported)?;
        } else {
            self.print(&imported)?;
        }
        match imported.problems.len() {
            0 => Ok(()),
            problems => bail!("{} not imported", count(problems, "model")),
        }
    }

    /// Writes the folder of a model, whole or not at all.
    fn import(&self, folder: &Path, name: &str) -> anyhow::Result<ImportedModel> {
        let model = TritonFolder::read(folder)?.with_context(|| format!("there is no {CONFIG}"))?;
        let mut pairs = model.versions.windows(2);
        ensure!(
            pairs.all(|pair| pair[0].registration == pair[1].registration),
            "its versions take their inputs in different orders, for which a folder has one model.json: name the inputs by position (INPUT__0)"
        );
        let place = self.to.join(name);
        ensure!(!place.exists(), "{} exists", place.display());
        let filling = self.to.join(format!(".{name}.import"));
        // Of an import that was killed.
        fs::remove_dir_all(&filling)
            .or_else(|e| {
                if e.kind() == io::ErrorKind::NotFound {
                    Ok(())
                } else {
                    Err(e)
                }
            })
            .with_context(|| format!("cannot empty {}", filling.display()))?;
        let written = write(&filling, &model)
            .and_then(|()| fs::rename(&filling, &place))
            .with_context(|| format!("cannot write {}", place.display()));
        if written.is_err() {
            fs::remove_dir_all(&filling).ok();
        }
        written?;
        Ok(ImportedModel {
            name: name.to_owned(),
            folder: place,
            versions: model
                .versions
                .iter()
                .map(|version| version.number)
                .collect(),
            notices: model.notices,
        })
    }

    fn print(&self, imported: &Imported) -> anyhow::Result<()> {
        for model in &imported.models {
            let versions: Vec<String> = model.versions.iter().map(u32::to_string).collect();
            output::print_line(format!(
                "{}: version {}",
                model.folder.display(),
                versions.join(", ")
            ))?;
            for notice in &model.notices {
                output::print_line(format!("  {notice}"))?;
            }
        }
        for Problem { place, problem } in &imported.problems {
            output::note(format_args!("{place} is not imported: {problem}"));
        }
        if !imported.models.is_empty() {
            output::print_line(format!("serve it: packhorse serve {}", self.to.display()))?;
        }
        Ok(())
    }
}

/// Fills the folder of a model.
fn write(folder: &Path, model: &TritonFolder) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // All versions have the same.
    if let Some(version) = model.versions.first() {
        let text = serde_json::to_string_pretty(&Value::Object(version.registration.clone()))?;
        fs::write(folder.join("model.json"), text + "\n")?;
    }
    for TritonVersion { number, file, .. } in &model.versions {
        let of_version = folder.join(number.to_string());
        fs::create_dir(&of_version)?;
        let is_package = file.extension() == Some(OsStr::new("pt2"));
        let to = of_version.join(if is_package { "model.pt2" } else { "model.pt" });
        // The link is one to the file itself, whatever links lead to it.
        let file = fs::canonicalize(file)?;
        fs::hard_link(&file, &to).or_else(|_| fs::copy(&file, &to).map(drop))?;
    }
    Ok(())
}
