//! Files on their way to the gateway: programs of models and their tokenizers.

use std::path::Path;

use packhorse_client::{AdminClient, ArtifactFile};
use packhorse_terminal::output;

/// Reads a model file for its digest, with a progress bar.
pub(in crate::commands) async fn hash_artifact(path: &Path) -> anyhow::Result<ArtifactFile> {
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let bar = output::byte_bar("hashing  ", size);
    let file = ArtifactFile::hash(path, |bytes| bar.set_position(bytes)).await?;
    bar.finish_and_clear();
    Ok(file)
}

/// Uploads a model file that the gateway does not have, with a progress bar.
pub(in crate::commands) async fn upload(
    admin: &AdminClient,
    file: &ArtifactFile,
) -> anyhow::Result<()> {
    if admin.has_artifact(file.digest()).await? {
        return Ok(());
    }
    let bar = output::byte_bar("uploading", file.bytes());
    let progress = bar.clone();
    admin
        .upload_artifact(file, move |bytes| progress.set_position(bytes))
        .await?;
    bar.finish_and_clear();
    Ok(())
}
