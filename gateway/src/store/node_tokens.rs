//! The tokens of single nodes, as hashes.

use std::collections::BTreeMap;

use packhorse_cluster::NodeName;
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, parsed, unix_ms};

impl Store {
    /// Stores the SHA-256 of a node's token, in place of the one before.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_node_token(
        &self,
        node: &NodeName,
        sha256: [u8; 32],
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(
            "INSERT INTO node_tokens (node, token_sha256, created_ms) VALUES ($1, $2, $3) \
             ON CONFLICT (node) DO UPDATE SET token_sha256 = excluded.token_sha256, created_ms = excluded.created_ms",
        )
        .bind(node.to_string())
        .bind(hex::encode(sha256))
        .bind(unix_ms())
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Removes a node's token, so that the agents' common token leases it again.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_node_token(&self, node: &NodeName) -> Result<(), StoreError> {
        let statement =
            sqlx::query("DELETE FROM node_tokens WHERE node = $1").bind(node.to_string());
        self.write(statement).await?;
        Ok(())
    }

    /// Returns the SHA-256 of each node's token.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn node_tokens(&self) -> Result<BTreeMap<NodeName, [u8; 32]>, StoreError> {
        let read = |row: &AnyRow| {
            let mut sha256 = [0; 32];
            hex::decode_to_slice(row.try_get::<String, _>("token_sha256")?, &mut sha256)
                .map_err(|e| StoreError::unreadable("node_tokens", "token_sha256")(e.into()))?;
            Ok((parsed(row, "node_tokens", "node")?, sha256))
        };
        let rows = sqlx::query("SELECT node, token_sha256 FROM node_tokens")
            .fetch_all(&self.database)
            .await?;
        rows.iter().map(read).collect()
    }
}
