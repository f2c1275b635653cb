//! Uploads of model files: a file is hashed first, then streamed, and never read into memory as a whole.

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

/// The size of the parts in which a file is read, in bytes.
const CHUNK: usize = 256 * 1024;
/// The time before the first byte of the body, in which the gateway can refuse an upload by its head. A server that refuses later closes
/// the connection while the file streams in, and its message is lost.
const REFUSAL_PAUSE: Duration = Duration::from_millis(200);
/// The lowest rate of an upload, in bytes per second. The time limit of an upload follows from it.
const MIN_BYTES_PER_SECOND: u64 = 256 * 1024;

/// A model file on this machine, with its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    path: PathBuf,
    digest: ArtifactDigest,
    bytes: u64,
}

/// The reason why a file cannot be hashed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct HashError {
    /// The path of the file.
    pub path: PathBuf,
    /// The error of the operating system.
    #[source]
    pub source: io::Error,
}

/// The reason why a file was not uploaded.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The file can no longer be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ArtifactFile {
    /// Reads the file once to calculate its digest and size. `progress` is called with the number of bytes read so far.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn hash(path: &Path, progress: impl Fn(u64)) -> Result<Self, HashError> {
        let failed = |source| HashError {
            path: path.to_owned(),
            source,
        };
        let file = open(path).await.map_err(failed)?;
        let (digest, bytes) = sha256(file, progress).await.map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            digest,
            bytes,
        })
    }

    /// Returns the SHA-256 of the file.
    pub fn digest(&self) -> ArtifactDigest {
        self.digest
    }

    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Opens a regular file. A file is read twice, and others may make a reader wait for ever: a named pipe has to have a writer even to be
/// opened.
async fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .await?;
    if file.metadata().await?.is_file() {
        return Ok(file);
    }
    let problem = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
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
    /// Returns true if the gateway has this artifact.
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

    /// Streams a file to the gateway, which checks its digest. `progress` is called with the number of bytes sent so far.
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
        let reader = open(&file.path).await.map_err(failed)?.take(file.bytes);
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
        let limit = Duration::from_secs(60 + file.bytes / MIN_BYTES_PER_SECOND);
        let (_, body) = self.caller.send_within(limit, request).await?;
        Ok(self.caller.parse_json(&body)?)
    }
}
