//! The durable state of the gateway, in one SQL database. The database is SQLite, and every statement is also valid on
//! `PostgreSQL`: numbered parameters, no engine-specific types, no upsert other than `ON CONFLICT`.
//!
//! A write is durable once it returns: SQLite runs with `synchronous=FULL`, so that an acknowledged registration survives a power
//! loss. The control plane writes a few rows per minute, for which the additional fsync costs nothing.

mod artifacts;
mod audit;
mod backup;
mod cluster;
mod events;
mod files;
mod keys;
mod migrations;
mod models;
mod node_tokens;
mod nodes;
mod pairs;
mod plans;
mod profiles;
mod settings;
mod splits;

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _, Row as _,
    any::{AnyConnectOptions, AnyPoolOptions, AnyRow},
};

use crate::audit::Act;

pub use backup::{Snapshot, SnapshotError};
pub use events::StoredEvent;
pub use files::{ArtifactFiles, OpenArtifactError, ReceiveError, Received};
pub use models::InsertModelError;
pub use plans::{PlanSummaryRecord, PlanTotals};

/// A handle to the database. Clones share one pool of connections.
#[derive(Clone, Debug)]
pub struct Store {
    pool: AnyPool,
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
    /// The engine failed for another reason: busy, damaged, connection lost.
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
        // SQLite's SQLITE_FULL and PostgreSQL's disk_full.
        const DISK_FULL: [&str; 2] = ["13", "53100"];
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        match code {
            Some(code) if DISK_FULL.contains(&&*code) => Self::DiskFull(error),
            _ => Self::Database(error),
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
        sqlx::any::install_default_drivers();
        let connect = |source| OpenStoreError::Connect {
            file: file.to_owned(),
            source,
        };
        let options = AnyConnectOptions::from_str(&format!("sqlite://{}?mode=rwc", url_path(file)))
            .map_err(connect)?;
        // A single connection first, for its error: a pool would retry until its timeout, and report only that.
        let mut first = options.connect().await.map_err(connect)?;
        prepare(&mut first).await.map_err(connect)?;
        first.close().await.map_err(connect)?;
        let pool = AnyPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .after_connect(|connection, _| Box::pin(prepare(connection)))
            .connect_with(options)
            .await
            .map_err(connect)?;
        migrations::migrator()
            .run(&pool)
            .await
            .map_err(OpenStoreError::Migrate)?;
        let store = Self { pool, act: None };
        store
            .summarize_plans()
            .await
            .map_err(OpenStoreError::Rows)?;
        Ok(store)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Sets the options of a new connection.
async fn prepare(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    connection.execute("PRAGMA busy_timeout = 5000").await?;
    connection.execute("PRAGMA journal_mode = WAL").await?;
    connection.execute("PRAGMA synchronous = FULL").await?;
    connection.execute("PRAGMA foreign_keys = ON").await?;
    Ok(())
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

/// Escapes a path for a URL.
fn url_path(file: &Path) -> String {
    use std::{fmt::Write as _, os::unix::ffi::OsStrExt as _};

    let mut text = String::new();
    for &byte in file.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_') {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
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
