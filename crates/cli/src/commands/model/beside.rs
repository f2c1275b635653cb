//! Files beside a registration that it names by their paths: the tokenizer of a model that takes texts, which is stored as the model's program is, and
//! the names of classes, which become part of the registration.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use packhorse_api::ModelRegistration;
use packhorse_client::ArtifactFile;
use packhorse_cluster::{Preprocess, TokenizerFile};
use packhorse_terminal::files::read_regular_file;
use serde_json::{Map, Value};

use super::upload::hash_artifact;

/// The largest file of names, in bytes.
const LABELS_LIMIT: u64 = 8 << 20;

/// The places where the files of a registration are looked for, in this order.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Places<'a> {
    /// The file with the program, which lies in a folder for its version.
    pub(in crate::commands) program: Option<&'a Path>,
    /// The file with the registration.
    pub(in crate::commands) registration: Option<&'a Path>,
}

impl Places<'_> {
    fn find(&self, field: &str, path: &str) -> anyhow::Result<PathBuf> {
        let folders = [self.program, self.registration].into_iter().flatten();
        let folders = folders.filter_map(Path::parent);
        let places = folders.flat_map(|folder| [Some(folder), folder.parent()]);
        let mut places = places.flatten().map(|folder| folder.join(path));
        let found = places.find(|place| place.is_file());
        found.with_context(|| format!("{field}: there is no file {path:?} beside the model"))
    }
}

/// Puts the names of classes into a registration that names a file with one a line.
///
/// # Errors
/// If there is no such file, or it cannot be read.
pub(in crate::commands) fn read_labels(
    spec: &mut Map<String, Value>,
    places: &Places<'_>,
) -> anyhow::Result<()> {
    let outputs = spec.get_mut("postprocess").and_then(Value::as_object_mut);
    for (output, declared) in outputs.into_iter().flatten() {
        let Some(labels) = declared.get_mut("labels") else {
            continue;
        };
        if let Some(path) = labels.as_str() {
            let field = format!("postprocess.{output}.labels");
            let file = places.find(&field, path)?;
            let read = read_regular_file(&file, LABELS_LIMIT);
            let text = String::from_utf8(read.with_context(|| field.clone())?);
            let text = text.with_context(|| format!("{field}: {}", file.display()))?;
            *labels = text.lines().map(str::to_owned).collect();
        }
    }
    Ok(())
}

/// Names the digest of the tokenizer's file in a registration that names its path. Returns the file, which is to be uploaded.
///
/// # Errors
/// If there is no such file, or it cannot be read.
pub(in crate::commands) async fn name_tokenizer(
    registration: &mut ModelRegistration,
    places: &Places<'_>,
) -> anyhow::Result<Option<ArtifactFile>> {
    for (input, declared) in &mut registration.preprocess {
        let Preprocess::Text(text) = declared else {
            continue;
        };
        let TokenizerFile::Path(path) = &text.tokenizer else {
            continue;
        };
        let field = format!("preprocess.{input}.tokenizer");
        let file = hash_artifact(&places.find(&field, path)?).await;
        let file = file.context(field)?;
        text.tokenizer = TokenizerFile::Stored(file.digest());
        return Ok(Some(file));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_classes_are_read_from_a_file_beside_the_program_or_above() {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join("1");
        fs::create_dir(&version).unwrap();
        fs::write(folder.path().join("labels.txt"), "cat\ndog\n").unwrap();
        let program = version.join("model.pt");
        let places = Places {
            program: Some(&program),
            registration: None,
        };
        let spec = |labels: Value| json!({"postprocess": {"y": {"top_k": 1, "labels": labels}}});
        let read = |labels: Value| {
            let Value::Object(mut spec) = spec(labels) else {
                panic!("it is an object");
            };
            read_labels(&mut spec, &places).map(|()| Value::Object(spec))
        };
        let names = spec(json!(["cat", "dog"]));
        assert_eq!(read(json!("labels.txt")).unwrap(), names);
        assert_eq!(read(json!(["cat", "dog"])).unwrap(), names);
        assert_eq!(
            read(json!("none.txt")).unwrap_err().to_string(),
            "postprocess.y.labels: there is no file \"none.txt\" beside the model"
        );
        fs::write(version.join("labels.txt"), "owl\n").unwrap();
        assert_eq!(read(json!("labels.txt")).unwrap(), spec(json!(["owl"])));
    }
}
