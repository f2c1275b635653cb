//! The move of a cluster from one database to another, of the same or the other engine, while no gateway runs.

use std::path::Path;

use futures_util::{StreamExt as _, TryStreamExt as _};
use packhorse_service::{StateDir, StateDirError};
use sqlx::{
    Any, AssertSqlSafe, Executor as _, Row as _,
    any::{AnyArguments, AnyPoolOptions, AnyRow, install_default_drivers},
    query::Query,
};

use super::{
    Engine, OpenStoreError, Store, StoreError, StoreUrl,
    database::{Database, Patience},
    hold::Hold,
    migrations, postgres,
    reals::BindReal as _,
    sqlite,
    tables::{ColumnKind, TABLES, Table},
    transaction::Transaction,
    unsigned,
};

/// The number of rows that one statement inserts.
const INSERTED_AT_ONCE: usize = 32;
/// The words about this for another holder.
const PROGRAM: &str = "packhorse store migrate";

/// The reason why a cluster is not moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A gateway runs, or the folder of a database cannot be used.
    #[error(transparent)]
    Folder(#[from] StateDirError),
    /// A database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    /// There is no cluster to move.
    #[error("--from: {0} contains no cluster")]
    NoCluster(StoreUrl),
    /// Another version wrote the database.
    #[error(
        "--from: {url} has the tables of another version ({found}, not {expected}); start a gateway of this version on it once"
    )]
    OtherVersion {
        /// The database.
        url: StoreUrl,
        /// The number of its newest migration.
        found: i64,
        /// That of this version.
        expected: i64,
    },
    /// The target has rows.
    #[error("--to: {url} is not empty: its table {table} has rows")]
    NotEmpty {
        /// The database.
        url: StoreUrl,
        /// A table with rows.
        table: &'static str,
    },
    /// The numbers of rows differ.
    #[error("the table {table} has {copied} rows in place of {expected}; nothing is moved")]
    Miscounted {
        /// The table.
        table: &'static str,
        /// The number of rows of the source.
        expected: u64,
        /// The number of rows of the target.
        copied: u64,
    },
    /// A database failed; nothing is moved.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for TransferError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The database that a cluster leaves, held or locked.
struct Source {
    database: Database,
    hold: Option<Hold>,
    _folder: Option<StateDir>,
}

/// Copies every row of a cluster into an empty database, all or none, and returns how many rows each table has. The source stays as it is.
///
/// # Errors
/// If a gateway has one of the databases, the target is not empty, or a database fails; then the target is empty.
pub async fn transfer(
    from: &StoreUrl,
    to: &StoreUrl,
) -> Result<Vec<(&'static str, u64)>, TransferError> {
    let source = Source::open(from).await?;
    source.check(from).await?;
    let _folder = lock_folder(to)?;
    let target = match to {
        StoreUrl::Sqlite(file) => Store::open(file).await?,
        StoreUrl::Postgres(url) => {
            let (database, hold) = postgres::open(url, PROGRAM).await?;
            Store::ready(database, Engine::Postgres(hold)).await?
        }
    };
    let counts = copy_all(&source.database, &target, to).await;
    target.close().await;
    source.database.close().await;
    if let Some(hold) = &source.hold {
        hold.give_back().await;
    }
    counts
}

/// Locks the folder of a database that is a file, as a gateway does.
fn lock_folder(url: &StoreUrl) -> Result<Option<StateDir>, StateDirError> {
    let StoreUrl::Sqlite(file) = url else {
        return Ok(None);
    };
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    StateDir::open(folder).map(Some)
}

impl Source {
    async fn open(url: &StoreUrl) -> Result<Self, TransferError> {
        match url {
            StoreUrl::Sqlite(file) => {
                if !file.is_file() {
                    return Err(TransferError::NoCluster(url.clone()));
                }
                let folder = lock_folder(url)?;
                install_default_drivers();
                let pool = AnyPoolOptions::new()
                    .max_connections(2)
                    .connect(&sqlite::url(file, "rw"))
                    .await?;
                let database = Database {
                    pool,
                    patience: Patience(None),
                };
                Ok(Self {
                    database,
                    hold: None,
                    _folder: folder,
                })
            }
            StoreUrl::Postgres(url) => Ok(Self {
                hold: Some(Hold::take(url, PROGRAM).await?),
                database: postgres::connect(url).await?,
                _folder: None,
            }),
        }
    }

    /// Checks that there is a cluster of this version.
    async fn check(&self, url: &StoreUrl) -> Result<(), TransferError> {
        const VERSION: &str = "SELECT COALESCE(MAX(version), 0) AS version FROM _sqlx_migrations";
        let no_cluster = || TransferError::NoCluster(url.clone());
        let version = sqlx::query(VERSION).fetch_one(&self.database).await;
        let found: i64 = match version {
            Ok(row) => row.try_get("version")?,
            Err(sqlx::Error::Database(_)) => return Err(no_cluster()),
            Err(e) => return Err(e.into()),
        };
        if found != migrations::newest() {
            return Err(TransferError::OtherVersion {
                url: url.clone(),
                found,
                expected: migrations::newest(),
            });
        }
        match count(&self.database, "cluster").await? {
            0 => Err(no_cluster()),
            _ => Ok(()),
        }
    }
}

async fn copy_all(
    source: &Database,
    target: &Store,
    to: &StoreUrl,
) -> Result<Vec<(&'static str, u64)>, TransferError> {
    let mut transaction = target.begin_own().await?;
    for table in &TABLES {
        if count(&mut transaction, table.name).await? > 0 {
            return Err(TransferError::NotEmpty {
                url: to.clone(),
                table: table.name,
            });
        }
    }
    let mut counts = Vec::with_capacity(TABLES.len());
    for table in &TABLES {
        copy(source, &mut transaction, table).await?;
        let expected = count(source, table.name).await?;
        let copied = count(&mut transaction, table.name).await?;
        if copied != expected {
            return Err(TransferError::Miscounted {
                table: table.name,
                expected,
                copied,
            });
        }
        counts.push((table.name, copied));
    }
    transaction.commit().await?;
    Ok(counts)
}

/// Returns the number of rows of a table.
async fn count<'e>(
    database: impl sqlx::Executor<'e, Database = Any>,
    table: &'static str,
) -> Result<u64, TransferError> {
    let statement = AssertSqlSafe(format!("SELECT COUNT(*) AS rows FROM {table}"));
    let row = sqlx::query(statement).fetch_one(database).await?;
    Ok(unsigned(&row, table, "rows")?)
}

/// Copies the rows of a table.
async fn copy(
    source: &Database,
    target: &mut Transaction,
    table: &Table,
) -> Result<(), TransferError> {
    let columns = table.columns.iter().map(|(name, kind)| match kind {
        // SQLite has no type of truth values of its own.
        ColumnKind::Truth => format!("CASE WHEN {name} THEN 1 ELSE 0 END AS {name}"),
        _ => (*name).to_owned(),
    });
    let columns: Vec<String> = columns.collect();
    let select = format!("SELECT {} FROM {}", columns.join(", "), table.name);
    let rows = source.fetch(sqlx::query(AssertSqlSafe(select)));
    let mut chunks = rows.try_chunks(INSERTED_AT_ONCE);
    while let Some(rows) = chunks.next().await {
        let rows = rows.map_err(|e| e.1)?;
        let statement = insert_statement(table, rows.len());
        let mut insert = sqlx::query(AssertSqlSafe(statement));
        for row in &rows {
            insert = bind(insert, row, table)?;
        }
        insert.execute(&mut *target).await?;
    }
    Ok(())
}

/// Returns the statement that inserts this many rows: the names of columns, and numbered parameters.
fn insert_statement(table: &Table, rows: usize) -> String {
    let width = table.columns.len();
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let rows = (0..rows).map(|row| {
        let parameters = (1..=width).map(|column| format!("${}", row * width + column));
        format!("({})", parameters.collect::<Vec<_>>().join(", "))
    });
    let rows: Vec<String> = rows.collect();
    format!(
        "INSERT INTO {} ({}) VALUES {}",
        table.name,
        names.join(", "),
        rows.join(", ")
    )
}

/// Binds the columns of a row.
fn bind<'q>(
    mut insert: Query<'q, Any, AnyArguments>,
    row: &AnyRow,
    table: &Table,
) -> Result<Query<'q, Any, AnyArguments>, sqlx::Error> {
    for (name, kind) in table.columns {
        insert = match kind {
            ColumnKind::Integer => insert.bind(row.try_get::<Option<i64>, _>(*name)?),
            ColumnKind::Real => insert.bind_real(row.try_get::<Option<f64>, _>(*name)?),
            ColumnKind::Text => insert.bind(row.try_get::<Option<String>, _>(*name)?),
            ColumnKind::Truth => insert.bind(row.try_get::<i64, _>(*name)? != 0),
        };
    }
    Ok(insert)
}
