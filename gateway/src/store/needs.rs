//! The rates that models and families are measured to need.

use std::collections::BTreeMap;

use packhorse_cluster::{ModelName, RequestsPerSecond};

use super::{Store, StoreError};

/// The name of the setting with the needs.
const NEEDS: &str = "needs";

impl Store {
    /// Returns the stored needs.
    ///
    /// # Errors
    /// If the database fails or contains what this version cannot read.
    pub async fn needs(&self) -> Result<BTreeMap<ModelName, RequestsPerSecond>, StoreError> {
        self.setting(NEEDS).await
    }

    /// Replaces the stored needs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_needs(
        &self,
        needs: &BTreeMap<ModelName, RequestsPerSecond>,
    ) -> Result<(), StoreError> {
        self.set_setting(NEEDS, needs).await
    }
}
