//! Sending a model file: hashed first, then streamed, never whole in memory.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{StreamExt, future, stream};
use packhorse_api::ArtifactView;
use packhorse_cluster::ArtifactDigest;
use reqwest::{
    Body, Method,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use sha2::{Digest, Sha256};
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncReadExt},
};
use tokio_util::io::ReaderStream;

use crate::{AdminClient, CallError};

/// How much of a file is in memory at a time.
const CHUNK: usize = 256 * 1024;
/// How long the gateway has to refuse an upload by its head: whoever refuses while a file streams in closes the connection, and
/// his words are lost with it.
const REFUSAL_PAUSE: Duration = Duration::from_millis(200);
/// An upload slower than this is taken for stuck.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 * 1024;

/// A model file on this machine, with its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    path: PathBuf,
    digest: ArtifactDigest,
    bytes: u64,
}

/// Why a file cannot be hashed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct HashError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// Why a file was not uploaded.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It cannot be read any more.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The exchange failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ArtifactFile {
    /// Reads the file once to know its digest and size. `progress` is told how many bytes are read so far.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn hash(path: &Path, progress: impl Fn(u64)) -> Result<Self, HashError> {
        let failed = |source| HashError {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).await.map_err(failed)?;
        let (digest, bytes) = sha256(file, progress).await.map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            digest,
            bytes,
        })
    }

    /// Its SHA-256.
    pub fn digest(&self) -> ArtifactDigest {
        self.digest
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

async fn sha256(
    mut reader: impl AsyncRead + Unpin,
    progress: impl Fn(u64),
) -> io::Result<(ArtifactDigest, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let read = reader.read(&mut buffer).await?;
        if read == 0 {
            return Ok((ArtifactDigest::from_sha256(hasher.finalize().into()), bytes));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
        progress(bytes);
    }
}

impl AdminClient {
    /// Whether the gateway has this artifact already.
    pub async fn has_artifact(&self, digest: ArtifactDigest) -> Result<bool, CallError> {
        let request = self
            .caller
            .request(Method::HEAD, ["v1", "artifacts", &digest.to_string()]);
        match self.caller.send(request).await {
            Ok(_) => Ok(true),
            Err(e) if e.status() == Some(reqwest::StatusCode::NOT_FOUND) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Streams a file to the gateway, which checks its digest. `progress` is told how many bytes are on their way.
    ///
    /// # Errors
    /// [`UploadError::Call`] with status 400 if the file has changed since it was hashed.
    pub async fn upload_artifact(
        &self,
        file: &ArtifactFile,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<ArtifactView, UploadError> {
        let failed = |source| UploadError::Read {
            path: file.path.clone(),
            source,
        };
        let reader = File::open(&file.path)
            .await
            .map_err(failed)?
            .take(file.bytes);
        let mut sent = 0;
        let chunks = ReaderStream::with_capacity(reader, CHUNK).inspect(move |chunk| {
            if let Ok(chunk) = chunk {
                sent += chunk.len() as u64;
                progress(sent);
            }
        });
        let pause = stream::once(tokio::time::sleep(REFUSAL_PAUSE));
        let chunks = pause.filter_map(|()| future::ready(None)).chain(chunks);
        let request = self
            .caller
            .request(Method::PUT, ["v1", "artifacts", &file.digest.to_string()])
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, file.bytes)
            .body(Body::wrap_stream(chunks));
        let limit = Duration::from_secs(60 + file.bytes / SLOWEST_BYTES_PER_SECOND);
        let (_, body) = self.caller.send_within(limit, request).await?;
        Ok(self.caller.json(&body)?)
    }
}
