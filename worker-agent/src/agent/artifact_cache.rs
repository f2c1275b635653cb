//! The node's artifact cache: an artifact is fetched once, checked against its digest, and kept while it is wanted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use packhorse_cluster::ArtifactDigest;
use sha2::{Digest, Sha256};
use tokio::{fs::File, io::AsyncWriteExt};

use crate::{
    gateway::{GatewayClient, GatewayError},
    worker_user::WorkerUser,
};

/// The most bytes of an artifact. No model is as large; the limit protects the disk.
const MAX_BYTES: u64 = 64 << 30;

/// A folder whose files are named by their SHA-256. A file with such a name is complete and was checked.
#[derive(Clone, Debug)]
pub(super) struct ArtifactCache {
    dir: PathBuf,
    readers: WorkerUser,
}

/// A failure to fetch an artifact.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the artifact cannot be fetched: {0}")]
    Gateway(#[from] GatewayError),
    #[error("the artifact cannot be stored: {0}")]
    Io(#[from] io::Error),
    #[error("the artifact is larger than the limit of {MAX_BYTES} bytes")]
    TooLarge,
    #[error("the artifact's digest does not match: got {0}")]
    Digest(ArtifactDigest),
}

impl ArtifactCache {
    /// Creates a handle for the cache in an existing folder, for workers of this user.
    pub(super) fn new(dir: PathBuf, readers: WorkerUser) -> Self {
        Self { dir, readers }
    }

    /// Returns the path of an artifact, which exists once the artifact was fetched.
    pub(super) fn path(&self, digest: ArtifactDigest) -> PathBuf {
        self.dir.join(digest.to_hex())
    }

    /// Returns true if the artifact is there.
    pub(super) fn has(&self, digest: ArtifactDigest) -> bool {
        self.path(digest).is_file()
    }

    /// Returns the cached artifacts, and removes incomplete files.
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

    /// Streams an artifact from the gateway into the cache. Only a complete file with the right digest gets the digest's name.
    pub(super) async fn fetch(
        &self,
        gateway: &GatewayClient,
        digest: ArtifactDigest,
    ) -> Result<(), FetchError> {
        let temporary = self.dir.join(format!("{}.part", digest.to_hex()));
        let stored = download(gateway, digest, &temporary).await;
        let stored = stored.and_then(|()| Ok(self.readers.let_read(&temporary)?));
        let renamed = match stored {
            Ok(()) => tokio::fs::rename(&temporary, self.path(digest))
                .await
                .map_err(FetchError::Io),
            Err(e) => Err(e),
        };
        match renamed {
            Ok(()) => {
                // The file's name must be on disk, too.
                File::open(&self.dir).await?.sync_all().await?;
                tracing::info!(artifact = %digest, "artifact fetched");
                Ok(())
            }
            Err(e) => {
                // Best effort: the next attempt overwrites the file.
                let _ = tokio::fs::remove_file(&temporary).await;
                Err(e)
            }
        }
    }

    /// Removes an artifact.
    pub(super) fn evict(&self, digest: ArtifactDigest) {
        tracing::info!(artifact = %digest, "artifact removed");
        if let Err(e) = fs::remove_file(self.path(digest)) {
            tracing::warn!(artifact = %digest, error = %e, "artifact not removed");
        }
    }
}

async fn download(
    gateway: &GatewayClient,
    digest: ArtifactDigest,
    to: &Path,
) -> Result<(), FetchError> {
    let mut body = gateway.get_artifact(digest).await?;
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
