//! Backups: the database and the model files at one moment, while the gateway runs.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use packhorse_cluster::ArtifactDigest;
use tokio::{fs, sync::OwnedSemaphorePermit};

use super::{ArtifactFiles, Engine, Store, StoreError};

/// The database and the model files as they were at one moment. It is removed from the disk when this is dropped.
#[derive(Debug)]
pub struct Snapshot {
    folder: PathBuf,
    artifacts: Vec<ArtifactDigest>,
    _permit: OwnedSemaphorePermit,
}

/// The reason why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Another backup is being made.
    #[error("another backup is being made; retry when it has ended")]
    Busy,
    /// The disk is full.
    #[error("no space is left on the gateway's disk for a copy of the database")]
    DiskFull,
    /// The database is not a file.
    #[error(
        "the database is PostgreSQL's: back it up with pg_dump, and the folder of model files with it (docs/operations/database.md)"
    )]
    NotAFile,
    /// The folder of the snapshot cannot be written.
    #[error("the snapshot cannot be written")]
    Write(#[source] io::Error),
    /// The database failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::DiskFull(_) => Self::DiskFull,
            other => Self::Store(other),
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Write(error),
        }
    }
}

impl Store {
    /// Returns true if the database is a file of SQLite.
    pub fn is_file(&self) -> bool {
        matches!(self.engine, Engine::Sqlite(_))
    }

    /// Writes a copy of the whole database to a file that does not exist. The database is in use meanwhile.
    ///
    /// # Errors
    /// If the database fails or the file cannot be written.
    pub async fn copy_to(&self, file: &Path) -> Result<(), StoreError> {
        sqlx::query("VACUUM INTO $1")
            .bind(file.display().to_string())
            .execute(&self.database)
            .await?;
        Ok(())
    }
}

impl ArtifactFiles {
    /// Takes a snapshot. Files that are deleted later stay in it.
    ///
    /// # Errors
    /// If the database is not a file, another snapshot exists, the disk is full, or the database fails.
    pub async fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        if !self.store.is_file() {
            return Err(SnapshotError::NotAFile);
        }
        let permit = Arc::clone(&self.snapshots).try_acquire_owned();
        let permit = permit.map_err(|_| SnapshotError::Busy)?;
        // No file comes or goes between the rows and the files.
        let _agreement = self.agreement.lock().await;
        let name = hex::encode(rand::random::<[u8; 16]>());
        let mut snapshot = Snapshot {
            folder: self.incoming().join(name),
            artifacts: Vec::new(),
            _permit: permit,
        };
        fs::create_dir(&snapshot.folder).await?;
        self.store.copy_to(&snapshot.database()).await?;
        for (digest, _) in self.store.artifacts().await? {
            match fs::hard_link(self.path(digest), snapshot.folder.join(digest.to_hex())).await {
                Ok(()) => snapshot.artifacts.push(digest),
                // A damaged store is backed up as far as it is there.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(artifact = %digest, "the file of an artifact is missing, and not in the backup");
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(snapshot)
    }
}

impl Snapshot {
    fn database(&self) -> PathBuf {
        self.folder.join("packhorse.db")
    }

    /// Writes a tar archive of the snapshot: `packhorse.db`, the files among `others` that exist, by their names, and
    /// `artifacts/DIGITS`. Blocks.
    ///
    /// # Errors
    /// If a file cannot be read or the archive not be written.
    pub fn write_tar(&self, others: &[PathBuf], to: impl io::Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(to);
        archive.mode(tar::HeaderMode::Deterministic);
        archive.append_path_with_name(self.database(), "packhorse.db")?;
        for path in others.iter().filter(|path| path.is_file()) {
            archive.append_path_with_name(path, path.file_name().unwrap_or_default())?;
        }
        for digest in &self.artifacts {
            let name = digest.to_hex();
            archive.append_path_with_name(self.folder.join(&name), format!("artifacts/{name}"))?;
        }
        archive.into_inner()?.flush()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
