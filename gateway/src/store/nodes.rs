//! Nodes with their last reported devices and their scheduling.

use packhorse_cluster::NodeName;
use packhorse_control::record::NodeRecord;
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, parsed, to_json};

impl Store {
    /// Adds a node, or replaces what its agent reports of it.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_node(&self, node: &NodeRecord) -> Result<(), StoreError> {
        self.insert_node(
            node,
            "INSERT INTO nodes (name, agent_version, devices, scheduling) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO UPDATE SET agent_version = excluded.agent_version, devices = excluded.devices",
        )
        .await
    }

    /// Adds a node, or replaces its scheduling.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn schedule_node(&self, node: &NodeRecord) -> Result<(), StoreError> {
        self.insert_node(
            node,
            "INSERT INTO nodes (name, agent_version, devices, scheduling) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO UPDATE SET scheduling = excluded.scheduling",
        )
        .await
    }

    async fn insert_node(
        &self,
        node: &NodeRecord,
        statement: &'static str,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(statement)
            .bind(node.name.to_string())
            .bind(node.agent_version.clone())
            .bind(to_json(&node.devices))
            .bind(to_json(&node.scheduling))
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Removes a node, if it exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_node(&self, name: &NodeName) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query("DELETE FROM nodes WHERE name = $1")
            .bind(name.to_string())
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns all nodes, ordered by name.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let rows =
            sqlx::query("SELECT name, agent_version, devices, scheduling FROM nodes ORDER BY name")
                .fetch_all(&self.database)
                .await?;
        let read = |row: &AnyRow| {
            Ok(NodeRecord {
                name: parsed(row, "nodes", "name")?,
                agent_version: row.try_get("agent_version")?,
                devices: json(row, "nodes", "devices")?,
                scheduling: json(row, "nodes", "scheduling")?,
            })
        };
        rows.iter().map(read).collect()
    }
}
