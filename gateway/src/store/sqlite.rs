//! A database of SQLite, in a file.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use sqlx::{
    ConnectOptions as _, Connection as _, Executor as _, SqliteConnection,
    any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers},
    sqlite::SqliteConnectOptions,
};
use tokio::sync::Mutex;

use super::{
    database::{Database, Patience},
    errors::OpenStoreError,
    migrations,
};

/// Opens the database in a file, creates it if it does not exist, and migrates its tables.
pub(super) async fn open(file: &Path) -> Result<(Database, Keeper), OpenStoreError> {
    let connect = |source| OpenStoreError::Connect {
        file: file.to_owned(),
        source,
    };
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    // It is the first, also for its error: a pool would retry until its timeout, and report only that.
    let keeper = Keeper::open(&options).await.map_err(connect)?;
    install_default_drivers();
    let options: AnyConnectOptions = url(file, "rwc").parse().map_err(connect)?;
    let pool = AnyPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(10))
        .connect_with(options)
        .await
        .map_err(connect)?;
    migrations::of_sqlite()
        .run(&pool)
        .await
        .map_err(OpenStoreError::Migrate)?;
    let database = Database {
        pool,
        patience: Patience(None),
    };
    Ok((database, keeper))
}

/// Returns the URL of a file, which may be called anything.
pub(super) fn url(file: &Path, mode: &str) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut url = "sqlite://".to_owned();
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                url.push(char::from(*byte));
            }
            other => write!(url, "%{other:02X}").expect("a text takes more text"),
        }
    }
    url.push_str("?mode=");
    url.push_str(mode);
    url
}

/// A connection that is open as long as the store, and changes no row.
///
/// The last connection that closes takes the index of the write-ahead log along, and the next one makes it anew from the
/// log. What the disk failed to make durable in a `COMMIT` is not in the index, but it may be in the log: without this connection, a
/// change that was refused could appear as soon as the connection that wrote it is closed. With it, the next change overwrites it.
#[derive(Clone, Debug)]
pub(super) struct Keeper(Arc<Mutex<Option<SqliteConnection>>>);

impl Keeper {
    async fn open(options: &SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let mut connection = options.connect().await?;
        // The file keeps it. All else is the default of every connection: `synchronous=FULL`, foreign keys, and five seconds of patience
        // with other writers. Nothing more is asked of a new one, since a pool would repeat what fails until its timeout.
        connection.execute("PRAGMA journal_mode = WAL").await?;
        Ok(Self(Arc::new(Mutex::new(Some(connection)))))
    }

    /// Brings what is in the write-ahead log into the database file.
    pub(super) async fn checkpoint(&self) -> Result<(), sqlx::Error> {
        if let Some(connection) = &mut *self.0.lock().await {
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").await?;
        }
        Ok(())
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        if let Some(connection) = self.0.lock().await.take() {
            // What it leaves undone is done at the next start.
            let _ = connection.close().await;
        }
    }
}
