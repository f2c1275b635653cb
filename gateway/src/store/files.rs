//! The model files: one per artifact, named by the hexadecimal digits of its SHA-256, in a folder beside the database.
//!
//! A file gets its name only when it is complete, checked and durable. Unfinished files are in `incoming/` and are removed at the
//! next start. Files without a row are moved to `orphans/` at the start. They, and files that no model uses, are deleted some time later
//! ([`ArtifactFiles::delete_unused`]).
//!
//! Files are hashed and written on threads for blocking work: a file of gigabytes must not delay anything else.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use packhorse_artifact::{Archive, ArchiveError};
use packhorse_cluster::{ArtifactDigest, ByteCount};
use sha2::{Digest as _, Sha256};
use tokio::{
    fs,
    io::{AsyncRead, AsyncReadExt as _},
    sync::{Mutex, Semaphore},
};

use super::{Store, StoreError, unix_ms};
use crate::audit::Act;

/// The number of bytes of a file that are hashed at a time.
const CHUNK: usize = 1 << 20;

/// The folder of model files, together with the rows of the complete ones.
#[derive(Clone, Debug)]
pub struct ArtifactFiles {
    folder: PathBuf,
    roots: Vec<PathBuf>,
    limit: ByteCount,
    pub(super) store: Store,
    /// Held while a file and its row are brought into agreement: by one who stores it and one who deletes it.
    pub(super) agreement: Arc<Mutex<()>>,
    /// One permit for the snapshot that may exist.
    pub(super) snapshots: Arc<Semaphore>,
}

/// A stored artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The SHA-256 digest of the file.
    pub digest: ArtifactDigest,
    /// The size of the file, in bytes.
    pub bytes: u64,
    /// True if the file was not stored before.
    pub new: bool,
}

/// The reason why a file is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The file has another digest than announced.
    #[error("the received bytes have the digest {received}, not {announced}")]
    Digest {
        /// The announced digest.
        announced: ArtifactDigest,
        /// The digest of the received bytes.
        received: ArtifactDigest,
    },
    /// The file is too large.
    #[error("the artifact is larger than the limit of {} bytes (--artifact-limit-bytes)", .0.as_u64())]
    TooLarge(ByteCount),
    /// The sender stopped early or was too slow.
    #[error("the artifact ended early or arrived too slowly")]
    Read(#[source] io::Error),
    /// The disk is full.
    #[error("no space is left on the gateway's disk")]
    DiskFull,
    /// No artifact root contains the file.
    #[error("no artifact root (--artifact-root) contains a readable file with this path")]
    NotFound,
    /// The file is an archive with a damaged member.
    #[error("the file is damaged: {0}; store it again from where it was made")]
    Damaged(#[source] ArchiveError),
    /// The file could not be written for another reason.
    #[error("the artifact could not be written")]
    Write(#[source] io::Error),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why a stored file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenArtifactError {
    /// The file is not stored.
    #[error("artifact {0} is not stored")]
    Unknown(ArtifactDigest),
    /// The file is stored, but cannot be opened or has another size.
    #[error("the file of artifact {0} is damaged")]
    Damaged(ArtifactDigest, #[source] io::Error),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ArtifactFiles {
    /// Returns a handle whose files are stored as this act.
    #[must_use]
    pub(crate) fn acting(&self, act: Act) -> Self {
        Self {
            store: self.store.acting(act),
            ..self.clone()
        }
    }

    /// Opens the folder, creates it if it does not exist, and removes unfinished files. `roots` are the folders from which files
    /// may be imported by path, `limit` is the largest size of one file.
    ///
    /// # Errors
    /// If the folder cannot be created or cleaned.
    pub async fn open(
        folder: PathBuf,
        roots: Vec<PathBuf>,
        limit: ByteCount,
        store: Store,
    ) -> io::Result<Self> {
        let incoming = folder.join("incoming");
        match fs::remove_dir_all(&incoming).await {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::create_dir_all(&incoming).await?;
        Ok(Self {
            folder,
            roots,
            limit,
            store,
            agreement: Arc::default(),
            snapshots: Arc::new(Semaphore::new(1)),
        })
    }

    /// Moves the files without a row aside: a gateway that was killed between the two left them, or they belong to rows that are lost.
    ///
    /// # Errors
    /// If the folder or the database cannot be read.
    pub async fn set_orphans_aside(&self) -> Result<(), StoreError> {
        let _agreement = self.agreement.lock().await;
        let known: BTreeSet<String> = self
            .store
            .artifacts()
            .await?
            .iter()
            .map(|(digest, _)| digest.to_hex())
            .collect();
        let Ok(mut entries) = fs::read_dir(&self.folder).await else {
            return Ok(());
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_artifact = format!("sha256:{name}").parse::<ArtifactDigest>().is_ok();
            if is_artifact && !known.contains(&*name) {
                let to = self.orphans().join(&*name);
                match set_aside(entry.path(), to.clone()).await {
                    Ok(()) => {
                        tracing::warn!(file = %to.display(), "a model file that the database does not know is set aside");
                    }
                    Err(e) => {
                        tracing::warn!(file = %name, error = %e, "a model file that the database does not know stays");
                    }
                }
            }
        }
        Ok(())
    }

    /// Deletes the files that no model uses, and that none has used and nobody has stored for this time, and those that were set aside as long
    /// ago. Returns the digests of the former.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_unused(&self, kept: Duration) -> Result<Vec<ArtifactDigest>, StoreError> {
        self.delete_orphans(kept).await;
        let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
        let since_ms = unix_ms().saturating_sub(kept);
        let mut deleted = Vec::new();
        for digest in self.store.unused_artifacts(since_ms).await? {
            let _agreement = self.agreement.lock().await;
            if self.store.delete_unused_artifact(digest, since_ms).await? {
                tracing::info!(artifact = %digest, "a model file that no model uses is deleted");
                remove(&self.path(digest)).await;
                deleted.push(digest);
            }
        }
        Ok(deleted)
    }

    /// Deletes the files that were set aside this long ago.
    async fn delete_orphans(&self, kept: Duration) {
        let Ok(mut entries) = fs::read_dir(self.orphans()).await else {
            return;
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let since = entry.metadata().await.and_then(|file| file.modified());
            // A clock that was set back keeps them.
            let age = since.ok().and_then(|since| since.elapsed().ok());
            if age.is_some_and(|age| age >= kept) {
                tracing::info!(file = %entry.path().display(), "a model file that was set aside is deleted");
                remove(&entry.path()).await;
            }
        }
    }

    /// Returns the largest size of one file.
    pub fn limit(&self) -> ByteCount {
        self.limit
    }

    /// Stores the bytes of `source`. The file is durable once this returns. Storing a stored file again changes nothing.
    ///
    /// # Errors
    /// If the bytes have another digest than announced, are too many, or cannot be read or written.
    pub async fn receive(
        &self,
        announced: Option<ArtifactDigest>,
        source: impl AsyncRead + Unpin,
    ) -> Result<Received, ReceiveError> {
        let incoming = Incoming::create(&self.incoming())
            .await
            .map_err(write_error)?;
        let (digest, bytes) = self.copy(source, &incoming.path).await?;
        if let Some(announced) = announced.filter(|announced| *announced != digest) {
            return Err(ReceiveError::Digest {
                announced,
                received: digest,
            });
        }
        check_weights(incoming.path.clone()).await?;
        let _agreement = self.agreement.lock().await;
        if self.store.artifact(digest).await? == Some(bytes)
            && self.is_complete(digest, bytes).await
        {
            self.store.insert_artifact(digest, bytes).await?;
            return Ok(Received {
                digest,
                bytes,
                new: false,
            });
        }
        fs::rename(&incoming.path, self.path(digest))
            .await
            .map_err(write_error)?;
        sync_folder(&self.folder).await.map_err(write_error)?;
        let new = self.store.insert_artifact(digest, bytes).await?;
        Ok(Received { digest, bytes, new })
    }

    /// Stores a file of this machine that is within one of the artifact roots after following links.
    ///
    /// # Errors
    /// If no root contains the file, or as [`ArtifactFiles::receive`].
    pub async fn import(&self, path: &str) -> Result<Received, ReceiveError> {
        self.receive(None, self.open_in_roots(path).await?).await
    }

    /// Returns the digest and the size of the file that [`ArtifactFiles::import`] would store. Stores nothing.
    ///
    /// # Errors
    /// If no root contains the file, or the file is too large or cannot be read.
    pub async fn examine(&self, path: &str) -> Result<(ArtifactDigest, u64), ReceiveError> {
        let mut file = self.open_in_roots(path).await?;
        let mut hash = Sha256::new();
        let mut total: u64 = 0;
        let mut chunk = Vec::with_capacity(CHUNK);
        while file
            .read_buf(&mut chunk)
            .await
            .map_err(ReceiveError::Read)?
            > 0
        {
            total = total.saturating_add(chunk.len() as u64);
            if total > self.limit.as_u64() {
                return Err(ReceiveError::TooLarge(self.limit));
            }
            let hashed = blocking(move || {
                hash.update(&chunk);
                chunk.clear();
                Ok((hash, chunk))
            });
            (hash, chunk) = hashed.await.map_err(ReceiveError::Read)?;
        }
        Ok((ArtifactDigest::from_sha256(hash.finalize().into()), total))
    }

    /// Opens a file of this machine that is within one of the artifact roots after following links.
    async fn open_in_roots(&self, path: &str) -> Result<fs::File, ReceiveError> {
        for root in &self.roots {
            let Ok(root) = fs::canonicalize(root).await else {
                continue;
            };
            // Joining an absolute path gives that path; the check below is on the resolved path.
            let Ok(file) = fs::canonicalize(root.join(path)).await else {
                continue;
            };
            let regular = fs::metadata(&file).await.is_ok_and(|m| m.is_file());
            if file.starts_with(&root) && regular {
                let opened = fs::File::open(&file).await;
                return opened.map_err(|_| ReceiveError::NotFound);
            }
        }
        Err(ReceiveError::NotFound)
    }

    /// Opens a stored file for reading, and returns its size in bytes.
    ///
    /// # Errors
    /// If the file is not stored, or damaged.
    pub async fn read(&self, digest: ArtifactDigest) -> Result<(fs::File, u64), OpenArtifactError> {
        let bytes = self
            .store
            .artifact(digest)
            .await?
            .ok_or(OpenArtifactError::Unknown(digest))?;
        let damaged = |e| OpenArtifactError::Damaged(digest, e);
        let file = fs::File::open(self.path(digest)).await.map_err(damaged)?;
        let length = file.metadata().await.map_err(damaged)?.len();
        if length != bytes {
            return Err(damaged(io::Error::other(format!(
                "{length} bytes instead of {bytes}"
            ))));
        }
        Ok((file, bytes))
    }

    /// Writes the bytes of `source` to a file, and returns their digest and number.
    async fn copy(
        &self,
        mut source: impl AsyncRead + Unpin,
        to: &Path,
    ) -> Result<(ArtifactDigest, u64), ReceiveError> {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(to)
            .await
            .map_err(write_error)?;
        let mut writer = HashingWriter {
            file: file.into_std().await,
            hash: Sha256::new(),
        };
        let mut total: u64 = 0;
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            while chunk.len() < CHUNK {
                let read = source.read_buf(&mut chunk).await;
                if read.map_err(ReceiveError::Read)? == 0 {
                    break;
                }
            }
            if chunk.is_empty() {
                break;
            }
            total = total.saturating_add(chunk.len() as u64);
            if total > self.limit.as_u64() {
                return Err(ReceiveError::TooLarge(self.limit));
            }
            let written = blocking(move || {
                writer.hash.update(&chunk);
                writer.file.write_all(&chunk)?;
                Ok((writer, chunk))
            });
            (writer, chunk) = written.await.map_err(write_error)?;
        }
        let digest = blocking(move || {
            writer.file.sync_all()?;
            Ok(ArtifactDigest::from_sha256(writer.hash.finalize().into()))
        });
        Ok((digest.await.map_err(write_error)?, total))
    }

    /// Returns true if the file of an artifact exists and has this size.
    async fn is_complete(&self, digest: ArtifactDigest, bytes: u64) -> bool {
        fs::metadata(self.path(digest))
            .await
            .is_ok_and(|m| m.len() == bytes)
    }

    /// Returns the folder of unfinished files.
    pub(super) fn incoming(&self) -> PathBuf {
        self.folder.join("incoming")
    }

    /// Returns the folder of the files without a row.
    fn orphans(&self) -> PathBuf {
        self.folder.join("orphans")
    }

    /// Returns the path of an artifact's file.
    pub(super) fn path(&self, digest: ArtifactDigest) -> PathBuf {
        self.folder.join(digest.to_hex())
    }
}

/// Compares the weights in a model's file with their checksums, which libtorch does not. What is no archive has none.
async fn check_weights(file: PathBuf) -> Result<(), ReceiveError> {
    let checked = blocking(move || {
        let file = std::fs::File::open(file)?;
        Ok(match Archive::open(file) {
            Ok(mut archive) => archive.check_stored(),
            Err(_) => Ok(()),
        })
    });
    match checked.await.map_err(write_error)? {
        Err(damage @ ArchiveError::Content(_)) => Err(ReceiveError::Damaged(damage)),
        Err(ArchiveError::Io(e)) => Err(write_error(e)),
        _ => Ok(()),
    }
}

/// A file that is being written, and the hash of what was written.
struct HashingWriter {
    file: std::fs::File,
    hash: Sha256,
}

/// Runs file operations on a thread for blocking work.
async fn blocking<T: Send + 'static>(
    operation: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(operation)
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Moves a file into a folder, which is made if it does not exist, and notes the time.
async fn set_aside(file: PathBuf, to: PathBuf) -> io::Result<()> {
    blocking(move || {
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let opened = std::fs::OpenOptions::new().append(true).open(&file)?;
        opened.set_modified(now())?;
        std::fs::rename(&file, &to)
    })
    .await
}

/// Returns the current time, as files have it.
fn now() -> std::time::SystemTime {
    let since = u64::try_from(unix_ms()).unwrap_or_default();
    std::time::UNIX_EPOCH + Duration::from_millis(since)
}

/// Removes a file that nothing refers to any more. One that cannot be removed now is removed at the next start.
async fn remove(file: &Path) {
    if let Err(e) = fs::remove_file(file).await
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %file.display(), error = %e, "a model file is not removed");
    }
}

/// A file that is being written. It is removed when this is dropped, unless it was moved before.
struct Incoming {
    path: PathBuf,
}

impl Incoming {
    async fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join(hex::encode(rand::random::<[u8; 16]>()));
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .await?;
        Ok(Self { path })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // The file is gone after a success. A file that cannot be removed now is removed at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the entries of a folder durable.
async fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder).await?.sync_all().await
}

/// Converts an error of writing a file.
fn write_error(error: io::Error) -> ReceiveError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ReceiveError::DiskFull,
        _ => ReceiveError::Write(error),
    }
}
