//! The tokenizer of a model that takes texts: a file beside the registration, which is stored as the model's program is.

use std::path::Path;

use anyhow::Context as _;
use packhorse_api::ModelRegistration;
use packhorse_client::ArtifactFile;
use packhorse_cluster::{Preprocess, TokenizerFile};

use super::upload::hash_artifact;

/// Names the digest of the tokenizer's file in a registration that names its path. Returns the file, which is to be uploaded.
///
/// The path is one from one of these folders, or from that above it: a program lies in a folder for its version.
///
/// # Errors
/// If there is no such file, or it cannot be read.
pub(in crate::commands) async fn name_tokenizer(
    registration: &mut ModelRegistration,
    folders: &[Option<&Path>],
) -> anyhow::Result<Option<ArtifactFile>> {
    for (input, declared) in &mut registration.preprocess {
        let Preprocess::Text(text) = declared else {
            continue;
        };
        let TokenizerFile::Path(path) = &text.tokenizer else {
            continue;
        };
        let folders = folders.iter().flatten();
        let places = folders.flat_map(|folder| [Some(*folder), folder.parent()]);
        let mut places = places.flatten().map(|folder| folder.join(path));
        let found = places.find(|place| place.is_file());
        let found = found.with_context(|| {
            format!("preprocess.{input}.tokenizer: there is no file {path:?} beside the model")
        })?;
        let file = hash_artifact(&found).await;
        let file = file.with_context(|| format!("preprocess.{input}.tokenizer"))?;
        text.tokenizer = TokenizerFile::Stored(file.digest());
        return Ok(Some(file));
    }
    Ok(None)
}
