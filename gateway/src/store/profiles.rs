//! What was measured of models.

use packhorse_cluster::{DeviceKind, ModelId, Profile, ProfileTable};
use sqlx::Row as _;

use super::{Store, StoreError, unix_ms};

impl Store {
    /// Adds profiles, replacing those that are there for the same model and kind of device. All or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn put_profiles(&self, profiles: &ProfileTable) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        for (model, kind, profile) in profiles.iter() {
            sqlx::query(
                "INSERT INTO profiles (name, version, device_kind, csv, created_ms) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (name, version, device_kind) DO UPDATE SET csv = excluded.csv, created_ms = excluded.created_ms",
            )
            .bind(model.name.to_string())
            .bind(i64::from(model.version.get()))
            .bind(kind.to_string())
            .bind(to_csv(model, kind, profile))
            .bind(unix_ms())
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// All profiles.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn profiles(&self) -> Result<ProfileTable, StoreError> {
        let rows = sqlx::query("SELECT csv FROM profiles")
            .fetch_all(&self.pool)
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
}

fn to_csv(model: &ModelId, kind: &DeviceKind, profile: &Profile) -> String {
    let mut table = ProfileTable::default();
    table.insert(model.clone(), kind.clone(), profile.clone());
    table.to_csv()
}
