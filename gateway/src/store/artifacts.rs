//! The model files that are complete on disk.

use packhorse_cluster::ArtifactDigest;
use sqlx::any::AnyRow;

use super::{Store, StoreError, parsed, unix_ms, unsigned};

impl Store {
    /// Adds a file that is complete on disk. Returns true if it was not stored before.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn insert_artifact(
        &self,
        digest: ArtifactDigest,
        bytes: u64,
    ) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "INSERT INTO artifacts (digest, bytes, created_ms) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING",
        )
        .bind(digest.to_string())
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(unix_ms())
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Returns the size of a stored file, in bytes.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn artifact(&self, digest: ArtifactDigest) -> Result<Option<u64>, StoreError> {
        sqlx::query("SELECT bytes FROM artifacts WHERE digest = $1")
            .bind(digest.to_string())
            .fetch_optional(&self.pool)
            .await?
            .map(|row| unsigned(&row, "artifacts", "bytes"))
            .transpose()
    }

    /// Returns all stored files with their sizes in bytes, ordered by digest.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn artifacts(&self) -> Result<Vec<(ArtifactDigest, u64)>, StoreError> {
        let read = |row: &AnyRow| {
            Ok((
                parsed(row, "artifacts", "digest")?,
                unsigned(row, "artifacts", "bytes")?,
            ))
        };
        let rows = sqlx::query("SELECT digest, bytes FROM artifacts ORDER BY digest")
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(read).collect()
    }
}
