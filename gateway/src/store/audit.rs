//! The audit log: what admins did, written in the transactions of their acts.

use packhorse_api::{AuditActor, AuditEntry};
use sqlx::{Row as _, any::AnyRow};

use super::{Store, StoreError, json, transaction::Transaction, unix_ms, unsigned};
use crate::audit::Act;

/// The entries to list.
#[derive(Clone, Debug, Default)]
pub struct WhichEntries {
    /// The number below which they are; all if none is given.
    pub before: Option<u64>,
    /// The model, node, key or file, or the name of a model for all of its versions; all if none is given.
    pub subject: Option<String>,
    /// The name of who acted, or the identity of the key; all if none is given.
    pub actor: Option<String>,
    /// The act, or the kind of its subject; all if none is given.
    pub action: Option<String>,
    /// The time before which they did not happen, as Unix time in milliseconds.
    pub since_ms: Option<i64>,
    /// The time by which they had happened, likewise.
    pub until_ms: Option<i64>,
    /// The largest number of entries.
    pub limit: u32,
}

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
    pub(super) async fn begin(&self) -> Result<Transaction, StoreError> {
        let mut transaction = self.begin_own().await?;
        if let Some(act) = &self.act {
            record(&mut transaction, act).await?;
        }
        Ok(transaction)
    }

    /// Returns entries, newest first.
    ///
    /// # Errors
    /// If the database fails or contains a row that this version cannot read.
    pub async fn audit(&self, which: &WhichEntries) -> Result<Vec<AuditEntry>, StoreError> {
        let before = which.before.map(i64::try_from);
        let rows = sqlx::query(
            "SELECT id, at_ms, actor, key_id, session, address, action, subject, change, before FROM audit \
             WHERE id < $1 \
             AND ($2 IS NULL OR subject = $2 OR substr(subject, 1, length($2) + 1) = $2 || ':') \
             AND ($3 IS NULL OR actor = $3 OR key_id = $3) \
             AND ($4 IS NULL OR action = $4 OR substr(action, 1, length($4) + 1) = $4 || '.') \
             AND ($5 IS NULL OR at_ms >= $5) AND ($6 IS NULL OR at_ms <= $6) \
             ORDER BY id DESC LIMIT $7",
        )
        .bind(before.and_then(Result::ok).unwrap_or(i64::MAX))
        .bind(&which.subject)
        .bind(&which.actor)
        .bind(&which.action)
        .bind(which.since_ms)
        .bind(which.until_ms)
        .bind(i64::from(which.limit))
        .fetch_all(&self.database)
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
        before,
    } = act;
    sqlx::query(
        "INSERT INTO audit (id, at_ms, actor, key_id, session, address, action, subject, change, before) \
         SELECT COALESCE(MAX(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, $9 FROM audit",
    )
    .bind(unix_ms())
    .bind(actor.name.clone())
    .bind(actor.key_id.clone())
    .bind(i64::from(actor.session))
    .bind(actor.address.clone())
    .bind(*action)
    .bind(subject.clone())
    .bind(change.to_string())
    .bind(before.as_ref().map(ToString::to_string))
    .execute(&mut *transaction)
    .await?;
    sqlx::query("DELETE FROM audit WHERE id <= (SELECT MAX(id) FROM audit) - $1")
        .bind(KEPT_ENTRIES)
        .execute(&mut *transaction)
        .await?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<AuditEntry, StoreError> {
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
        before: match row.try_get::<Option<&str>, _>("before")? {
            Some(_) => Some(json(row, "audit", "before")?),
            None => None,
        },
    })
}
