//! The durable state of the gateway, in one database: of SQLite in a file, or of PostgreSQL. The statements are the same.
//!
//! A write is durable once it returns: SQLite runs with `synchronous=FULL`, and PostgreSQL with `synchronous_commit` at least `on`, so that an
//! acknowledged registration survives a power loss. The control plane writes a few rows per minute, for which the additional fsync costs nothing.

mod artifacts;
mod audit;
mod backup;
mod clock;
mod cluster;
mod database;
mod errors;
mod events;
mod files;
mod hold;
mod identity;
mod keys;
mod measurements;
mod migrations;
mod models;
mod needs;
mod node_tokens;
mod nodes;
mod pairs;
mod plans;
mod postgres;
mod profiles;
mod reals;
mod settings;
mod splits;
mod sqlite;
mod store_url;
mod tables;
mod transaction;
mod transfer;

use std::{path::Path, str::FromStr, sync::Arc};

use sqlx::{
    Any, Row as _,
    any::{AnyArguments, AnyRow},
    query::Query,
};

use crate::audit::Act;

pub use audit::WhichEntries;
pub use backup::{Snapshot, SnapshotError};
pub(crate) use clock::unix_ms;
pub use errors::{OpenStoreError, StoreError};
pub use events::StoredEvent;
pub use files::{ArtifactFiles, OpenArtifactError, ReceiveError, Received};
pub use identity::{
    DatabaseContents, StoreIdentity, UnusableDatabase, UnusableServer, has_model_files,
};
pub use models::InsertModelError;
pub use plans::{PlanSummaryRecord, PlanTotals};
pub use store_url::{InvalidStoreUrl, PostgresUrl, StoreUrl};
pub use tables::{ColumnKind, TABLES, Table};
pub use transfer::{TransferError, transfer};

use database::Database;
use hold::Hold;
use sqlite::Keeper;
use transaction::Transaction;

/// A handle to the database. Clones share one pool of connections.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    engine: Engine,
    /// The act that the writes of this handle are; `None` for those of the gateway itself.
    act: Option<Arc<Act>>,
}

/// The needs of an engine beside the connections.
#[derive(Clone, Debug)]
enum Engine {
    Sqlite(Keeper),
    Postgres(Hold),
}

impl Store {
    /// Opens the SQLite database in a file, creates it if it does not exist, and migrates its tables.
    ///
    /// # Errors
    /// If the file cannot be opened or was written by a newer version.
    pub async fn open(file: &Path) -> Result<Self, OpenStoreError> {
        let (database, keeper) = sqlite::open(file).await?;
        Self::ready(database, Engine::Sqlite(keeper)).await
    }

    /// Opens the database of a gateway and migrates its tables. A file is created if it does not exist. A database of PostgreSQL is held until the
    /// store is closed.
    ///
    /// # Errors
    /// If the database cannot be opened, was written by a newer version, or another gateway holds it.
    pub async fn open_at(url: &StoreUrl) -> Result<Self, OpenStoreError> {
        match url {
            StoreUrl::Sqlite(file) => Self::open(file).await,
            StoreUrl::Postgres(url) => {
                let (database, hold) = postgres::open(url, "packhorse-gateway").await?;
                Self::ready(database, Engine::Postgres(hold)).await
            }
        }
    }

    async fn ready(database: Database, engine: Engine) -> Result<Self, OpenStoreError> {
        let store = Self {
            database,
            engine,
            act: None,
        };
        store
            .summarize_plans()
            .await
            .map_err(OpenStoreError::Rows)?;
        Ok(store)
    }

    /// Begins a transaction of the gateway itself.
    async fn begin_own(&self) -> Result<Transaction, StoreError> {
        let Engine::Postgres(hold) = &self.engine else {
            return Ok(Transaction::begin(&self.database).await?);
        };
        // On the heap, so that the futures of all writes stay small.
        Box::pin(hold.begin(&self.database)).await
    }

    /// Carries out a statement of the gateway itself, and returns how many rows it has changed.
    async fn write(&self, statement: Query<'_, Any, AnyArguments>) -> Result<u64, StoreError> {
        let mut transaction = self.begin_own().await?;
        let done = statement.execute(&mut transaction).await?;
        transaction.commit().await?;
        Ok(done.rows_affected())
    }

    /// Looks after the hold on a database of PostgreSQL, and waits until another gateway has it. Returns which; never with a file.
    pub(crate) async fn superseded(&self) -> String {
        match &self.engine {
            Engine::Sqlite(_) => std::future::pending().await,
            Engine::Postgres(hold) => hold.keep().await,
        }
    }

    /// Brings what is in the write-ahead log into the database file, so that the log is not all that has it. Readers and writers go on.
    ///
    /// # Errors
    /// If the database fails; then the log has it all the same.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        match &self.engine {
            Engine::Sqlite(keeper) => Ok(keeper.checkpoint().await?),
            // The server does it on its own.
            Engine::Postgres(_) => Ok(()),
        }
    }

    /// Closes all connections. What is in the write-ahead log is in the database file afterwards.
    pub async fn close(&self) {
        self.database.close().await;
        match &self.engine {
            Engine::Sqlite(keeper) => keeper.close().await,
            Engine::Postgres(hold) => hold.give_back().await,
        }
    }
}

/// Reads an unsigned number.
fn unsigned<T: TryFrom<i64, Error: std::error::Error + Send + Sync + 'static>>(
    row: &AnyRow,
    table: &'static str,
    column: &'static str,
) -> Result<T, StoreError> {
    T::try_from(row.try_get::<i64, _>(column)?)
        .map_err(|e| StoreError::unreadable(table, column)(e.into()))
}

/// Reads a text and parses it.
fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    row: &AnyRow,
    table: &'static str,
    column: &'static str,
) -> Result<T, StoreError> {
    row.try_get::<String, _>(column)?
        .parse()
        .map_err(|e: T::Err| StoreError::unreadable(table, column)(e.into()))
}

/// Reads a JSON value.
fn json<T: serde::de::DeserializeOwned>(
    row: &AnyRow,
    table: &'static str,
    column: &'static str,
) -> Result<T, StoreError> {
    serde_json::from_str(&row.try_get::<String, _>(column)?)
        .map_err(|e| StoreError::unreadable(table, column)(e.into()))
}

/// Converts a value into JSON.
fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("our own messages are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_connection_is_durable_and_checks_references() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("packhorse.db"))
            .await
            .unwrap();
        let mut connections = Vec::new();
        for _ in 0..4 {
            let mut connection = store.database.pool.acquire().await.unwrap();
            for (pragma, expected) in [
                ("synchronous", 2),
                ("foreign_keys", 1),
                ("busy_timeout", 5000),
            ] {
                let query = sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA {pragma}")));
                let row = query.fetch_one(&mut *connection).await.unwrap();
                assert_eq!(row.get::<i64, _>(0), expected, "{pragma}");
            }
            let row = sqlx::query("PRAGMA journal_mode").fetch_one(&mut *connection);
            assert_eq!(row.await.unwrap().get::<String, _>(0), "wal");
            connections.push(connection);
        }
    }
}
