//! The splits of requests over the versions of a model.

use packhorse_cluster::{ModelVersion, Split};
use packhorse_control::record::{RejectedVersion, SplitRecord};
use sqlx::Row as _;

use super::{Store, StoreError, parsed, to_json};

impl Store {
    /// Adds or replaces the split of a model.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn upsert_split(&self, record: &SplitRecord) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let rejected = record.rejected.as_ref();
        sqlx::query(
            "INSERT INTO splits (name, split, previous, sticky, stable, rejected, rejected_reason) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO UPDATE SET split = excluded.split, \
             previous = excluded.previous, sticky = excluded.sticky, stable = excluded.stable, rejected = excluded.rejected, \
             rejected_reason = excluded.rejected_reason",
        )
        .bind(record.name.to_string())
        .bind(record.split.as_ref().map(to_json))
        .bind(record.previous.as_ref().map(to_json))
        .bind(record.sticky.as_str())
        .bind(record.stable.map(|version| i64::from(version.get())))
        .bind(rejected.map(|rejected| i64::from(rejected.version.get())))
        .bind(rejected.map(|rejected| rejected.reason.clone()))
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the splits of all models that have one.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn splits(&self) -> Result<Vec<SplitRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT name, split, previous, sticky, stable, rejected, rejected_reason FROM splits ORDER BY name",
        )
        .fetch_all(&self.database)
        .await?;
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            let split = |column: &'static str| -> Result<Option<Split>, StoreError> {
                let text: Option<String> = row.try_get(column)?;
                let split = text.map(|text| serde_json::from_str(&text)).transpose();
                split.map_err(|e| StoreError::unreadable("splits", column)(e.into()))
            };
            let version = |column: &'static str| -> Result<Option<ModelVersion>, StoreError> {
                let Some(number) = row.try_get::<Option<i64>, _>(column)? else {
                    return Ok(None);
                };
                let version = ModelVersion::new(u32::try_from(number).unwrap_or(0));
                let version =
                    version.map_err(|e| StoreError::unreadable("splits", column)(e.into()))?;
                Ok(Some(version))
            };
            let reason: Option<String> = row.try_get("rejected_reason")?;
            let rejected = version("rejected")?.map(|version| RejectedVersion {
                version,
                reason: reason.unwrap_or_default(),
            });
            records.push(SplitRecord {
                name: parsed(&row, "splits", "name")?,
                split: split("split")?,
                previous: split("previous")?,
                sticky: parsed(&row, "splits", "sticky")?,
                stable: version("stable")?,
                rejected,
            });
        }
        Ok(records)
    }
}
