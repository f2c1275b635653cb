//! The rates that models and families are measured to need.

use std::collections::BTreeMap;

use packhorse_cluster::{ModelName, RequestsPerSecond};

use super::{Store, StoreError, settings::SET, to_json};

/// The name of the setting with the needs.
const NEEDS: &str = "needs";

impl Store {
    /// Returns the stored needs.
    ///
    /// # Errors
    /// If the database fails or contains what this version cannot read.
    pub async fn needs(&self) -> Result<BTreeMap<ModelName, RequestsPerSecond>, StoreError> {
        let row = sqlx::query("SELECT value FROM settings WHERE name = $1")
            .bind(NEEDS)
            .fetch_optional(&self.pool)
            .await?;
        let read = |row| super::json(&row, "settings", "value");
        row.map_or(Ok(BTreeMap::new()), read)
    }

    /// Replaces the stored needs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_needs(
        &self,
        needs: &BTreeMap<ModelName, RequestsPerSecond>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(SET)
            .bind(NEEDS)
            .bind(to_json(needs))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}
