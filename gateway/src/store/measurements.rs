//! The measurements that were made, by what they depend on.

use packhorse_cluster::{Profile, ProfileTable};
use packhorse_control::MeasurementKey;
use packhorse_kernels::KernelTable;
use sqlx::Row as _;

use super::{Store, StoreError, parsed, profiles, unix_ms};

impl Store {
    /// Adds the profile of a measurement with its recorded kernels, as [`Store::upsert_profiles`] does, and the measurement by what it depends on:
    /// both or neither.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_measurement(
        &self,
        key: &MeasurementKey,
        profiles: &ProfileTable,
        kernels: &KernelTable,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        profiles::upsert(&mut transaction, profiles, kernels).await?;
        sqlx::query(
            "INSERT INTO measurements (artifact, device_kind, signature, libtorch, csv, created_ms) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (artifact, device_kind, signature, libtorch) DO UPDATE \
             SET csv = excluded.csv, created_ms = excluded.created_ms",
        )
        .bind(key.artifact.to_string())
        .bind(key.device_kind.to_string())
        .bind(&key.signature)
        .bind(&key.libtorch)
        .bind(profiles.to_csv())
        .bind(unix_ms())
        .execute(&mut transaction)
        .await?;
        sqlx::query(
            "DELETE FROM measurements WHERE (artifact, device_kind, signature, libtorch) NOT IN \
             (SELECT artifact, device_kind, signature, libtorch FROM measurements ORDER BY created_ms DESC LIMIT $1)",
        )
        .bind(i64::from(MeasurementKey::MAX_KNOWN))
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Removes a measurement, but no profile.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_measurement(&self, key: &MeasurementKey) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "DELETE FROM measurements WHERE artifact = $1 AND device_kind = $2 AND signature = $3 AND libtorch = $4",
        )
        .bind(key.artifact.to_string())
        .bind(key.device_kind.to_string())
        .bind(&key.signature)
        .bind(&key.libtorch);
        self.write(statement).await?;
        Ok(())
    }

    /// Returns all measurements, the oldest first.
    ///
    /// # Errors
    /// If the database fails or contains what this version cannot read.
    pub async fn measurements(&self) -> Result<Vec<(MeasurementKey, Profile)>, StoreError> {
        const TABLE: &str = "measurements";
        let rows = sqlx::query(
            "SELECT artifact, device_kind, signature, libtorch, csv FROM measurements ORDER BY created_ms",
        )
        .fetch_all(&self.database)
        .await?;
        let mut all = Vec::new();
        for row in rows {
            let key = MeasurementKey {
                artifact: parsed(&row, TABLE, "artifact")?,
                device_kind: parsed(&row, TABLE, "device_kind")?,
                signature: row.try_get("signature")?,
                libtorch: row.try_get("libtorch")?,
            };
            let table = ProfileTable::from_csv(&row.try_get::<String, _>("csv")?)
                .map_err(|e| StoreError::unreadable(TABLE, "csv")(e.into()))?;
            all.extend(
                table
                    .iter()
                    .next()
                    .map(|(_, _, profile)| (key, profile.clone())),
            );
        }
        Ok(all)
    }
}
