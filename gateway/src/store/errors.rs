//! The errors of the database, of either engine.

use std::path::PathBuf;

use super::store_url::PostgresUrl;

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
    /// The server cannot be used.
    #[error("cannot use the database {url}")]
    Server {
        /// The database.
        url: PostgresUrl,
        /// The error of the database engine.
        #[source]
        source: sqlx::Error,
    },
    /// Another process holds the database.
    #[error(
        "the database {url} is in use by {by}; stop it, or give this gateway a database of its own (--store)"
    )]
    Held {
        /// The database.
        url: PostgresUrl,
        /// The other process.
        by: String,
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
    /// Another gateway has begun to use the database.
    #[error("another gateway has taken the database, and this one changes nothing any more: {0}")]
    Superseded(String),
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
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};

        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        match (code.as_deref().map(ResultCode::from_text), &error) {
            (Some(ResultCode::DiskFull), _) => Self::DiskFull(error),
            (Some(ResultCode::Unavailable), _)
            | (None, Io(_) | Tls(_) | Protocol(_) | PoolTimedOut | PoolClosed | WorkerCrashed) => {
                Self::Unavailable(error)
            }
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
    /// Reads a SQLSTATE, which has five characters, or an extended result code of SQLite, which has four at most.
    fn from_text(code: &str) -> Self {
        match code.len() {
            5 => Self::from_sqlstate(code),
            _ => Self::from_sqlite(code),
        }
    }

    fn from_sqlstate(code: &str) -> Self {
        // Connections, authorization, insufficient resources, intervention of an operator, the system, corruption; transactions that did not
        // serialize, read-only servers, ends by a timeout, locks.
        const UNAVAILABLE: [&str; 12] = [
            "08", "28", "53", "57", "58", "XX001", "XX002", "40", "25006", "25P03", "25P04",
            "55P03",
        ];

        if code == "53100" {
            return Self::DiskFull;
        }
        if UNAVAILABLE.iter().any(|class| code.starts_with(class)) {
            Self::Unavailable
        } else {
            Self::Other
        }
    }

    /// Reads an extended result code of SQLite, whose lowest byte is the primary one.
    fn from_sqlite(code: &str) -> Self {
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
    pub(super) fn unreadable(
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
