//! The model files that are complete on disk.

use packhorse_cluster::ArtifactDigest;
use sqlx::any::AnyRow;

use super::{Store, StoreError, parsed, unix_ms, unsigned};

impl Store {
    /// Adds a file that is complete on disk, or notes that it was stored again. Returns true if it was not stored before.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn insert_artifact(
        &self,
        digest: ArtifactDigest,
        bytes: u64,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let done = sqlx::query(
            "INSERT INTO artifacts (digest, bytes, created_ms) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING",
        )
        .bind(digest.to_string())
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(unix_ms())
        .execute(&mut transaction)
        .await?;
        let new = done.rows_affected() > 0;
        if !new {
            sqlx::query("UPDATE artifacts SET last_used_ms = $1 WHERE digest = $2")
                .bind(unix_ms())
                .bind(digest.to_string())
                .execute(&mut transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(new)
    }

    /// Returns the files that no model uses, and that none has used and nobody has stored since this time, in milliseconds since 1970.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn unused_artifacts(&self, since_ms: i64) -> Result<Vec<ArtifactDigest>, StoreError> {
        let rows = sqlx::query(
            "SELECT digest FROM artifacts WHERE COALESCE(last_used_ms, created_ms) < $1 \
             AND NOT EXISTS (SELECT 1 FROM models WHERE models.artifact = artifacts.digest) \
             AND NOT EXISTS (SELECT 1 FROM models WHERE models.tokenizer = artifacts.digest)",
        )
        .bind(since_ms)
        .fetch_all(&self.database)
        .await?;
        rows.iter()
            .map(|row| parsed(row, "artifacts", "digest"))
            .collect()
    }

    /// Removes the row of a file if it is still unused. Returns true if it was removed: no model can be registered with it any more.
    /// A registration at the same time either comes first, and keeps the row, or finds none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_unused_artifact(
        &self,
        digest: ArtifactDigest,
        since_ms: i64,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "DELETE FROM artifacts WHERE digest = $1 AND COALESCE(last_used_ms, created_ms) < $2 \
             AND NOT EXISTS (SELECT 1 FROM models WHERE models.artifact = artifacts.digest) \
             AND NOT EXISTS (SELECT 1 FROM models WHERE models.tokenizer = artifacts.digest)",
        )
        .bind(digest.to_string())
        .bind(since_ms);
        let done = self.write(statement).await?;
        Ok(done > 0)
    }

    /// Returns the size of a stored file, in bytes.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn artifact(&self, digest: ArtifactDigest) -> Result<Option<u64>, StoreError> {
        sqlx::query("SELECT bytes FROM artifacts WHERE digest = $1")
            .bind(digest.to_string())
            .fetch_optional(&self.database)
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
            .fetch_all(&self.database)
            .await?;
        rows.iter().map(read).collect()
    }
}
