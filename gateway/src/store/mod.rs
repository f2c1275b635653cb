//! The durable state of the gateway, in one database of SQLite.
//!
//! A write is durable once it returns: SQLite runs with `synchronous=FULL`, so that an acknowledged registration survives a power
//! loss. The control plane writes a few rows per minute, for which the additional fsync costs nothing.

mod artifacts;
mod audit;
mod backup;
mod cluster;
mod events;
mod files;
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
mod profiles;
mod settings;
mod splits;
mod transaction;

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _, Executor as _, Row as _, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow},
};
use tokio::sync::Mutex;

use crate::audit::Act;

pub use audit::WhichEntries;
pub use backup::{Snapshot, SnapshotError};
pub use events::StoredEvent;
pub use files::{ArtifactFiles, OpenArtifactError, ReceiveError, Received};
pub use identity::{DatabaseContents, StoreIdentity, UnusableDatabase, has_model_files};
pub use models::InsertModelError;
pub use plans::{PlanSummaryRecord, PlanTotals};

/// A handle to the database. Clones share one pool of connections.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
    keeper: Keeper,
    /// The act that the writes of this handle are; `None` for those of the gateway itself.
    act: Option<Arc<Act>>,
}

/// The reason why the database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// The database cannot be opened or created, or the file is not a database.
    #[error("cannot open the database {}", .file.display())]
    Connect {
        /// The database file.
        file: PathBuf,
        /// The error of the database engine.
        #[source]
        source: sqlx::Error,
    },
    /// The tables cannot be migrated, for example because a newer version wrote them.
    #[error("cannot migrate the database to this version; it may have been written by a newer one")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// The rows of an earlier version cannot be brought to this one.
    #[error("cannot bring the rows of the database to this version")]
    Rows(#[source] StoreError),
}

/// The reason why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("no space is left on the disk of the database")]
    DiskFull(#[source] sqlx::Error),
    /// The files cannot be read or written now, memory is short, or another process has the database.
    #[error(
        "the database cannot be read or written now; look before you retry a change (the cause is in the gateway's log)"
    )]
    Unavailable(#[source] sqlx::Error),
    /// The engine failed for another reason, for example a row that it cannot convert.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// A row contains a value that this version never writes.
    #[error("the database contains an unreadable {table}.{column}")]
    Unreadable {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The error of parsing the value.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut, WorkerCrashed};

        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        match (code.as_deref().map(ResultCode::from_text), &error) {
            (Some(ResultCode::DiskFull), _) => Self::DiskFull(error),
            (Some(ResultCode::Unavailable), _)
            | (None, Io(_) | PoolTimedOut | PoolClosed | WorkerCrashed) => Self::Unavailable(error),
            _ => Self::Database(error),
        }
    }
}

/// A result code of the database engine, as far as it matters to whoever asked.
enum ResultCode {
    /// There is no room: for rows, or for the index of the write-ahead log.
    DiskFull,
    /// It is the machine that fails, not the statement.
    Unavailable,
    /// Any other.
    Other,
}

impl ResultCode {
    /// Reads an extended result code of SQLite, whose lowest byte is the primary one.
    fn from_text(code: &str) -> Self {
        const SQLITE_FULL: u32 = 13;
        const SQLITE_IOERR_SHMSIZE: u32 = 4874;
        // SQLITE_BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, CORRUPT, CANTOPEN, PROTOCOL, NOTADB.
        const UNAVAILABLE: [u32; 10] = [5, 6, 7, 8, 9, 10, 11, 14, 15, 26];

        match code.parse::<u32>() {
            Ok(SQLITE_FULL | SQLITE_IOERR_SHMSIZE) => Self::DiskFull,
            Ok(code) if UNAVAILABLE.contains(&(code & 0xff)) => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

impl StoreError {
    /// Returns a function that converts the error of parsing a value.
    fn unreadable(
        table: &'static str,
        column: &'static str,
    ) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::Unreadable {
            table,
            column,
            source,
        }
    }
}

impl Store {
    /// Opens the SQLite database in a file, creates it if it does not exist, and migrates its tables.
    ///
    /// # Errors
    /// If the file cannot be opened or was written by a newer version.
    pub async fn open(file: &Path) -> Result<Self, OpenStoreError> {
        let connect = |source| OpenStoreError::Connect {
            file: file.to_owned(),
            source,
        };
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true);
        // It is the first, also for its error: a pool would retry until its timeout, and report only that.
        let keeper = Keeper::open(&options).await.map_err(connect)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(options)
            .await
            .map_err(connect)?;
        migrations::migrator()
            .run(&pool)
            .await
            .map_err(OpenStoreError::Migrate)?;
        let store = Self {
            pool,
            keeper,
            act: None,
        };
        store
            .summarize_plans()
            .await
            .map_err(OpenStoreError::Rows)?;
        Ok(store)
    }

    /// Brings what is in the write-ahead log into the database file, so that the log is not all that has it. Readers and writers go on.
    ///
    /// # Errors
    /// If the database fails; then the log has it all the same.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        if let Some(connection) = &mut *self.keeper.0.lock().await {
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").await?;
        }
        Ok(())
    }

    /// Closes all connections. What is in the write-ahead log is in the database file afterwards.
    pub async fn close(&self) {
        self.pool.close().await;
        self.keeper.close().await;
    }
}

/// A connection that is open as long as the store, and changes no row.
///
/// The last connection that closes takes the index of the write-ahead log along, and the next one makes it anew from the
/// log. What the disk failed to make durable in a `COMMIT` is not in the index, but it may be in the log: without this connection, a
/// change that was refused could appear as soon as the connection that wrote it is closed. With it, the next change overwrites it.
#[derive(Clone, Debug)]
struct Keeper(Arc<Mutex<Option<SqliteConnection>>>);

impl Keeper {
    async fn open(options: &SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let mut connection = options.connect().await?;
        // The file keeps it. All else is the default of every connection: `synchronous=FULL`, foreign keys, and five seconds of patience
        // with other writers. Nothing more is asked of a new one, since a pool would repeat what fails until its timeout.
        connection.execute("PRAGMA journal_mode = WAL").await?;
        Ok(Self(Arc::new(Mutex::new(Some(connection)))))
    }

    async fn close(&self) {
        if let Some(connection) = self.0.lock().await.take() {
            // What it leaves undone is done at the next start.
            let _ = connection.close().await;
        }
    }
}

/// Returns the current time, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the store is where wall-clock times are written"
)]
pub(crate) fn unix_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

/// Reads an unsigned number.
fn unsigned<T: TryFrom<i64, Error: std::error::Error + Send + Sync + 'static>>(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
) -> Result<T, StoreError> {
    T::try_from(row.try_get::<i64, _>(column)?)
        .map_err(|e| StoreError::unreadable(table, column)(e.into()))
}

/// Reads a text and parses it.
fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
) -> Result<T, StoreError> {
    row.try_get::<String, _>(column)?
        .parse()
        .map_err(|e: T::Err| StoreError::unreadable(table, column)(e.into()))
}

/// Reads a JSON value.
fn json<T: serde::de::DeserializeOwned>(
    row: &SqliteRow,
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
            let mut connection = store.pool.acquire().await.unwrap();
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
