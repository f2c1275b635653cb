//! The artifacts of this node, by digest: fetched once, checked, and kept while they are wanted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use packhorse_cluster::ArtifactDigest;
use sha2::{Digest, Sha256};
use tokio::{fs::File, io::AsyncWriteExt};

use super::gateway::{Gateway, GatewayError};

/// Larger files are refused: no model is, but a disk is soon full.
const MAX_BYTES: u64 = 64 << 30;

/// A folder whose files are named by their SHA-256. Files under a digest's name are complete and were checked.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    dir: PathBuf,
}

/// Why an artifact could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the artifact cannot be fetched: {0}")]
    Gateway(#[from] GatewayError),
    #[error("the artifact cannot be stored: {0}")]
    Io(#[from] io::Error),
    #[error("the artifact is over the limit of {MAX_BYTES} bytes")]
    TooLarge,
    #[error("the artifact's digest does not match: got {0}")]
    Digest(ArtifactDigest),
}

impl Cache {
    /// The cache in a folder that exists.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where an artifact is, once it was fetched.
    pub(super) fn path(&self, digest: ArtifactDigest) -> PathBuf {
        self.dir.join(digest.to_hex())
    }

    /// The artifacts that are there. What was not finished is removed.
    pub(super) fn scan(&self) -> io::Result<Vec<ArtifactDigest>> {
        let mut digests = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            match format!("sha256:{}", name.to_string_lossy()).parse() {
                Ok(digest) => digests.push(digest),
                Err(_) => fs::remove_file(entry.path())?,
            }
        }
        Ok(digests)
    }

    /// Streams an artifact from the gateway into the cache: only a whole file whose digest is right gets the digest's name.
    pub(super) async fn fetch(
        &self,
        gateway: &Gateway,
        digest: ArtifactDigest,
    ) -> Result<(), FetchError> {
        let temporary = self.dir.join(format!("{}.part", digest.to_hex()));
        let stored = download(gateway, digest, &temporary).await;
        let renamed = match stored {
            Ok(()) => tokio::fs::rename(&temporary, self.path(digest))
                .await
                .map_err(FetchError::Io),
            Err(e) => Err(e),
        };
        match renamed {
            Ok(()) => {
                // The name itself must be on disk, too.
                File::open(&self.dir).await?.sync_all().await?;
                tracing::info!(artifact = %digest, "artifact fetched");
                Ok(())
            }
            Err(e) => {
                // Best effort: the next attempt starts the file anew.
                let _ = tokio::fs::remove_file(&temporary).await;
                Err(e)
            }
        }
    }

    pub(super) fn evict(&self, digest: ArtifactDigest) {
        tracing::info!(artifact = %digest, "artifact removed");
        if let Err(e) = fs::remove_file(self.path(digest)) {
            tracing::warn!(artifact = %digest, error = %e, "artifact not removed");
        }
    }
}

async fn download(gateway: &Gateway, digest: ArtifactDigest, to: &Path) -> Result<(), FetchError> {
    let mut body = gateway.artifact(digest).await?;
    let mut file = File::create(to).await?;
    let mut hasher = Sha256::new();
    let mut length: u64 = 0;
    while let Some(chunk) = body.chunk().await.map_err(GatewayError::from)? {
        length = length.saturating_add(chunk.len() as u64);
        if length > MAX_BYTES {
            return Err(FetchError::TooLarge);
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await?;
    }
    file.sync_all().await?;
    let found = ArtifactDigest::from_sha256(hasher.finalize().into());
    if found == digest {
        Ok(())
    } else {
        Err(FetchError::Digest(found))
    }
}
