//! The measured pairs of models that share a device.

use std::collections::BTreeMap;

use packhorse_cluster::DeviceKind;
use packhorse_contention::PairTable;
use sqlx::Row as _;

use super::{Store, StoreError, unix_ms};

impl Store {
    /// Adds or replaces the table of a kind of device.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_pairs(
        &self,
        kind: &DeviceKind,
        pairs: &PairTable,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(
            "INSERT INTO pairs (device_kind, csv, created_ms) VALUES ($1, $2, $3) \
             ON CONFLICT (device_kind) DO UPDATE SET csv = excluded.csv, created_ms = excluded.created_ms",
        )
        .bind(kind.to_string())
        .bind(pairs.to_csv())
        .bind(unix_ms())
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the tables of all kinds of device.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn pairs(&self) -> Result<BTreeMap<DeviceKind, PairTable>, StoreError> {
        let rows = sqlx::query("SELECT device_kind, csv FROM pairs")
            .fetch_all(&self.database)
            .await?;
        let mut all = BTreeMap::new();
        for row in rows {
            let kind = row.try_get::<String, _>("device_kind")?;
            let kind = kind.parse().map_err(|e: packhorse_cluster::IdError| {
                StoreError::unreadable("pairs", "device_kind")(e.into())
            })?;
            let table = PairTable::from_csv(&row.try_get::<String, _>("csv")?)
                .map_err(|e| StoreError::unreadable("pairs", "csv")(e.into()))?;
            all.insert(kind, table);
        }
        Ok(all)
    }
}
