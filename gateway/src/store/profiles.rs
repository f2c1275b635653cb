//! Profiles of models and the kernels that were recorded with them.

use packhorse_cluster::{DeviceKind, ModelId, ModelName, Profile, ProfileTable};
use packhorse_kernels::{KernelTable, Recording};
use sqlx::Row as _;

use super::{Store, StoreError, transaction::Transaction, unix_ms};

impl Store {
    /// Adds profiles with their recorded kernels. They replace existing ones of the same model and kind of device. All or none are
    /// added.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_profiles(
        &self,
        profiles: &ProfileTable,
        kernels: &KernelTable,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        upsert(&mut transaction, profiles, kernels).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns all profiles.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn profiles(&self) -> Result<ProfileTable, StoreError> {
        let rows = sqlx::query("SELECT csv FROM profiles")
            .fetch_all(&self.database)
            .await?;
        let mut all = ProfileTable::default();
        for row in rows {
            let table = ProfileTable::from_csv(&row.try_get::<String, _>("csv")?)
                .map_err(|e| StoreError::unreadable("profiles", "csv")(e.into()))?;
            for (model, kind, profile) in table.iter() {
                all.insert(model.clone(), kind.clone(), profile.clone());
            }
        }
        Ok(all)
    }

    /// Returns the recorded kernels of a model, in all its versions.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn kernels(&self, model: &ModelName) -> Result<KernelTable, StoreError> {
        let rows =
            sqlx::query("SELECT kernels FROM profiles WHERE name = $1 AND kernels IS NOT NULL")
                .bind(model.to_string())
                .fetch_all(&self.database)
                .await?;
        let mut all = KernelTable::default();
        for row in rows {
            let table = KernelTable::from_csv(&row.try_get::<String, _>("kernels")?)
                .map_err(|e| StoreError::unreadable("profiles", "kernels")(e.into()))?;
            for (model, kind, recording) in table.iter() {
                all.insert(model.clone(), kind.clone(), recording.clone());
            }
        }
        Ok(all)
    }
}

/// Adds or replaces profiles with their recorded kernels within a transaction.
pub(super) async fn upsert(
    transaction: &mut Transaction,
    profiles: &ProfileTable,
    kernels: &KernelTable,
) -> Result<(), StoreError> {
    for (model, kind, profile) in profiles.iter() {
        let recording = kernels
            .get(model, kind)
            .map(|recording| kernels_csv(model, kind, recording));
        sqlx::query(
            "INSERT INTO profiles (name, version, device_kind, csv, created_ms, kernels) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (name, version, device_kind) DO UPDATE \
             SET csv = excluded.csv, created_ms = excluded.created_ms, kernels = excluded.kernels",
        )
        .bind(model.name.to_string())
        .bind(i64::from(model.version.get()))
        .bind(kind.to_string())
        .bind(to_csv(model, kind, profile))
        .bind(unix_ms())
        .bind(recording)
        .execute(&mut *transaction)
        .await?;
    }
    Ok(())
}

fn kernels_csv(model: &ModelId, kind: &DeviceKind, recording: &Recording) -> String {
    let mut table = KernelTable::default();
    table.insert(model.clone(), kind.clone(), recording.clone());
    table.to_csv()
}

fn to_csv(model: &ModelId, kind: &DeviceKind, profile: &Profile) -> String {
    let mut table = ProfileTable::default();
    table.insert(model.clone(), kind.clone(), profile.clone());
    table.to_csv()
}
