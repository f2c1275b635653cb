//! The newest events of the cluster.

use packhorse_api::events::EventKind;
use sqlx::{AssertSqlSafe, Row as _, any::AnyRow};

use super::{Store, StoreError, parsed, unsigned};

/// The number of events that one statement inserts. Databases limit the parameters of a statement; SQLite's limit is 32,766.
const INSERTED_AT_ONCE: usize = 64;

/// An event as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event's number.
    pub id: u64,
    /// The kind of change.
    pub kind: EventKind,
    /// The event as the API describes it, in JSON.
    pub body: String,
}

impl Store {
    /// Adds events and deletes those with a number below `oldest_kept`, in one transaction.
    ///
    /// # Errors
    /// If the database fails; then nothing has changed.
    pub async fn insert_events(
        &self,
        events: &[StoredEvent],
        oldest_kept: u64,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin_own().await?;
        for chunk in events.chunks(INSERTED_AT_ONCE) {
            let rows: Vec<String> = (0..chunk.len())
                .map(|row| format!("(${}, ${}, ${})", 3 * row + 1, 3 * row + 2, 3 * row + 3))
                .collect();
            let statement = format!(
                "INSERT INTO events (id, kind, body) VALUES {}",
                rows.join(", ")
            );
            // The statement contains nothing but numbered parameters.
            let mut insert = sqlx::query(AssertSqlSafe(statement));
            for event in chunk {
                insert = insert
                    .bind(signed(event.id))
                    .bind(event.kind.name())
                    .bind(event.body.as_str());
            }
            insert.execute(&mut transaction).await?;
        }
        sqlx::query("DELETE FROM events WHERE id < $1")
            .bind(signed(oldest_kept))
            .execute(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Returns the events from number `first` to number `last`, in ascending order.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn events(&self, first: u64, last: u64) -> Result<Vec<StoredEvent>, StoreError> {
        let rows =
            sqlx::query("SELECT id, kind, body FROM events WHERE id BETWEEN $1 AND $2 ORDER BY id")
                .bind(signed(first))
                .bind(signed(last))
                .fetch_all(&self.database)
                .await?;
        rows.iter().map(read).collect()
    }

    /// Returns the number and the size in bytes of every stored event, in ascending order.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn event_sizes(&self) -> Result<Vec<(u64, usize)>, StoreError> {
        let rows = sqlx::query("SELECT id, OCTET_LENGTH(body) AS bytes FROM events ORDER BY id")
            .fetch_all(&self.database)
            .await?;
        rows.iter()
            .map(|row| {
                let bytes: u64 = unsigned(row, "events", "bytes")?;
                Ok((unsigned(row, "events", "id")?, bytes as usize))
            })
            .collect()
    }
}

/// Converts a number of an event, which starts at 1 and never comes near the limit.
fn signed(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

fn read(row: &AnyRow) -> Result<StoredEvent, StoreError> {
    Ok(StoredEvent {
        id: unsigned(row, "events", "id")?,
        kind: parsed(row, "events", "kind")?,
        body: row.try_get("body")?,
    })
}
