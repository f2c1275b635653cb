//! API keys, as hashes.

use packhorse_api::KeyView;
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, reals::BindReal as _, to_json};
use crate::keys::{KeyHash, KeyRecord};

impl Store {
    /// Adds a key.
    ///
    /// # Errors
    /// If the database fails, or has a key of this identity.
    pub async fn insert_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let view = &key.view;
        sqlx::query(
            "INSERT INTO keys (id, name, sha256, scopes, created_ms, expires_ms, rate_rps, max_in_flight, \
             model_limits) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(view.id.clone())
        .bind(view.name.clone())
        .bind(hex::encode(key.hash.0))
        .bind(to_json(&view.scopes))
        .bind(view.created_at_ms)
        .bind(view.expires_at_ms)
        .bind_real(view.rate_rps)
        .bind(view.max_in_flight.map(i64::from))
        .bind((!view.model_limits.is_empty()).then(|| to_json(&view.model_limits)))
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Replaces the hashes of a key.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn update_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let previous = key.previous.as_ref();
        sqlx::query(
            "UPDATE keys SET sha256 = $1, previous_sha256 = $2, previous_until_ms = $3 WHERE id = $4",
        )
        .bind(hex::encode(key.hash.0))
        .bind(previous.map(|(hash, _)| hex::encode(hash.0)))
        .bind(previous.map(|(_, until)| *until))
        .bind(key.view.id.clone())
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Replaces the limits of a key.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_key_limits(&self, view: &KeyView) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query(
            "UPDATE keys SET rate_rps = $1, max_in_flight = $2, model_limits = $3 WHERE id = $4",
        )
        .bind_real(view.rate_rps)
        .bind(view.max_in_flight.map(i64::from))
        .bind((!view.model_limits.is_empty()).then(|| to_json(&view.model_limits)))
        .bind(view.id.clone())
        .execute(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Stores when a key was last used.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_key_use(&self, id: &str, last_used_ms: i64) -> Result<(), StoreError> {
        let statement = sqlx::query("UPDATE keys SET last_used_ms = $1 WHERE id = $2")
            .bind(last_used_ms)
            .bind(id.to_owned());
        self.write(statement).await?;
        Ok(())
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delete_key(&self, id: &str) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query("DELETE FROM keys WHERE id = $1")
            .bind(id.to_owned())
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns all keys.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, name, sha256, previous_sha256, previous_until_ms, scopes, created_ms, expires_ms, rate_rps, \
             max_in_flight, model_limits, last_used_ms FROM keys",
        )
        .fetch_all(&self.database)
        .await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<KeyRecord, StoreError> {
    let hash = |column: &'static str, text: &str| {
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash)
            .map_err(|e| StoreError::unreadable("keys", column)(e.into()))?;
        Ok::<_, StoreError>(KeyHash(hash))
    };
    let previous: Option<String> = row.try_get("previous_sha256")?;
    let previous = previous
        .map(|text| hash("previous_sha256", &text))
        .transpose()?;
    let until: Option<i64> = row.try_get("previous_until_ms")?;
    let max_in_flight: Option<i64> = row.try_get("max_in_flight")?;
    let max_in_flight = max_in_flight.map(u32::try_from).transpose();
    Ok(KeyRecord {
        view: KeyView {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            scopes: json(row, "keys", "scopes")?,
            created_at_ms: row.try_get("created_ms")?,
            expires_at_ms: row.try_get("expires_ms")?,
            rate_rps: row.try_get("rate_rps")?,
            max_in_flight: max_in_flight
                .map_err(|e| StoreError::unreadable("keys", "max_in_flight")(e.into()))?,
            model_limits: match row.try_get::<Option<String>, _>("model_limits")? {
                Some(_) => json(row, "keys", "model_limits")?,
                None => Vec::new(),
            },
            last_used_at_ms: row.try_get("last_used_ms")?,
        },
        hash: hash("sha256", &row.try_get::<String, _>("sha256")?)?,
        previous: previous.zip(until),
    })
}
