//! The audit log: what admins did, written in the transactions of their acts.

use packhorse_api::{AuditActor, AuditEntry};
use sqlx::{Row as _, sqlite::SqliteRow};

use super::{Store, StoreError, json, transaction::Transaction, unix_ms, unsigned};
use crate::audit::Act;

/// The number of entries that are kept.
const KEPT_ENTRIES: i64 = 100_000;

impl Store {
    /// Returns a handle for the writes of an act. Each of them records the act in its own transaction, so that neither is stored without
    /// the other.
    #[must_use]
    pub fn acting(&self, act: Act) -> Self {
        Self {
            act: Some(act.into()),
            ..self.clone()
        }
    }

    /// Records the act that this handle is for, if it changes nothing in the database.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn record(&self) -> Result<(), StoreError> {
        Ok(self.begin().await?.commit().await?)
    }

    /// Begins a transaction, and records the act in it that this handle is for.
    pub(super) async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        let mut transaction = Transaction::begin(&self.pool).await?;
        if let Some(act) = &self.act {
            record(&mut transaction, act).await?;
        }
        Ok(transaction)
    }

    /// Returns the newest entries with a number below `before`, newest first, at most `limit`.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        let rows = sqlx::query(
            "SELECT id, at_ms, actor, key_id, session, address, action, subject, change FROM audit \
             WHERE id < $1 ORDER BY id DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }
}

async fn record(transaction: &mut Transaction, act: &Act) -> Result<(), sqlx::Error> {
    let Act {
        actor,
        action,
        subject,
        change,
    } = act;
    sqlx::query(
        "INSERT INTO audit (id, at_ms, actor, key_id, session, address, action, subject, change) \
         SELECT COALESCE(MAX(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8 FROM audit",
    )
    .bind(unix_ms())
    .bind(actor.name.clone())
    .bind(actor.key_id.clone())
    .bind(i64::from(actor.session))
    .bind(actor.address.clone())
    .bind(*action)
    .bind(subject.clone())
    .bind(change.to_string())
    .execute(&mut **transaction)
    .await?;
    sqlx::query("DELETE FROM audit WHERE id <= (SELECT MAX(id) FROM audit) - $1")
        .bind(KEPT_ENTRIES)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

fn read(row: &SqliteRow) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        id: unsigned(row, "audit", "id")?,
        at_ms: row.try_get("at_ms")?,
        actor: AuditActor {
            name: row.try_get("actor")?,
            key_id: row.try_get("key_id")?,
            session: row.try_get::<i64, _>("session")? != 0,
            address: row.try_get("address")?,
        },
        action: row.try_get("action")?,
        subject: row.try_get("subject")?,
        change: json(row, "audit", "change")?,
    })
}
