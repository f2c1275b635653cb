//! Nodes with their last reported devices and their scheduling.

use packhorse_api::agent::DeviceReport;
use packhorse_cluster::NodeName;
use serde::{Deserialize, Serialize};
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, parsed, to_json};

/// The scheduling of a node, which an admin controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// Replicas are placed on the node.
    #[default]
    Open,
    /// The node keeps its replicas and gets no new ones.
    Cordoned,
    /// The node's replicas move to other nodes.
    Draining,
}

/// A node as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNode {
    /// The node's name.
    pub name: NodeName,
    /// The version of the node's agent.
    pub agent_version: String,
    /// The devices that the agent last reported.
    pub devices: Vec<DeviceReport>,
    /// The scheduling of the node.
    pub scheduling: Scheduling,
}

impl Store {
    /// Adds or replaces a node.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_node(&self, node: &StoredNode) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO nodes (name, agent_version, devices, scheduling) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO UPDATE SET agent_version = excluded.agent_version, devices = excluded.devices, \
             scheduling = excluded.scheduling",
        )
        .bind(node.name.to_string())
        .bind(node.agent_version.clone())
        .bind(to_json(&node.devices))
        .bind(to_json(&node.scheduling))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Returns all nodes, ordered by name.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn nodes(&self) -> Result<Vec<StoredNode>, StoreError> {
        let rows =
            sqlx::query("SELECT name, agent_version, devices, scheduling FROM nodes ORDER BY name")
                .fetch_all(&self.pool)
                .await?;
        let read = |row: &AnyRow| {
            Ok(StoredNode {
                name: parsed(row, "nodes", "name")?,
                agent_version: row.try_get("agent_version")?,
                devices: json(row, "nodes", "devices")?,
                scheduling: json(row, "nodes", "scheduling")?,
            })
        };
        rows.iter().map(read).collect()
    }
}
