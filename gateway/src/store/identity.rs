//! The identity of a state folder: a small file beside the database that says whose it is.
//!
//! SQLite makes an empty database where there is none, and reads what is left of one whose write-ahead log is missing or damaged. A gateway
//! that then started would be ready, know nothing, and have every worker end. So the folder remembers which cluster its database is of
//! and how far it had come, and a database that knows less is refused before anything is changed.

use std::{io, path::Path};

use packhorse_cluster::ClusterId;
use serde::{Deserialize, Serialize};
use sqlx::{AnyConnection, Connection as _, Executor as _, Row as _, any::install_default_drivers};

use super::{PostgresUrl, Store, StoreError, hold::CONNECT_LIMIT, parsed, sqlite, unsigned};

/// The identity of a store, which lies beside the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The epoch of the last start.
    pub epoch: u64,
}

/// The contents of a database, as far as they tell whether it is the one that belongs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseContents {
    /// There is no database, or nothing is in it.
    Empty,
    /// It has rows.
    Rows {
        /// The cluster; `None` if a version wrote it that knew of none.
        cluster_id: Option<ClusterId>,
        /// The highest epoch.
        epoch: u64,
    },
    /// It cannot be read, with the reason.
    Damaged(String),
    /// It cannot be read now, with the reason, which says nothing about it.
    Unavailable(String),
}

/// The reason why a gateway does not start on a state folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableDatabase {
    /// The database is damaged.
    #[error("the database packhorse.db is damaged: {0}; {CURE}")]
    Damaged(String),
    /// The database cannot be read now, and may be all right.
    #[error(
        "the database packhorse.db cannot be read now: {0}; start again once no other program holds it and the gateway's user may read it"
    )]
    Unavailable(String),
    /// There was a database, and there is none now, or nothing is in it.
    #[error(
        "the folder was used, but its database is empty: packhorse.db or its log packhorse.db-wal is missing or damaged; {CURE}"
    )]
    Lost,
    /// The database is that of another cluster.
    #[error(
        "the database is of cluster {found}, but the folder of cluster {expected} (store.json); {CURE}"
    )]
    OtherCluster {
        /// The cluster of the database.
        found: String,
        /// The cluster of the folder.
        expected: ClusterId,
    },
    /// The database is older than the folder.
    #[error(
        "the database is older than the folder (epoch {found}, not {expected}): a part is missing, such as its log packhorse.db-wal; \
         {CURE}, or remove store.json to go on with what is there"
    )]
    Older {
        /// The highest epoch in the database.
        found: u64,
        /// The epoch of the last start.
        expected: u64,
    },
}

/// The reason why a gateway does not start with a state folder and a database of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableServer {
    /// The database cannot be read now.
    #[error("the database cannot be read now: {0}")]
    Unavailable(String),
    /// The database has a row that cannot be read.
    #[error("the database is damaged: {0}; restore a dump of it")]
    Damaged(String),
    /// The folder was used, and nothing is in the database.
    #[error(
        "the state folder was used, but this database is empty; bring the cluster here (packhorse store migrate --from sqlite:… --to postgres://…), \
         name the database that belongs to the folder, or start an empty cluster with --new-cluster, which moves what is in the folder aside"
    )]
    Empty,
    /// The database is that of another cluster.
    #[error(
        "the database is of cluster {found}, but the state folder of cluster {expected} (store.json); name the database that belongs to the \
         folder, or another folder (--state-dir)"
    )]
    OtherCluster {
        /// The cluster of the database.
        found: String,
        /// The cluster of the folder.
        expected: ClusterId,
    },
    /// The database is older than the folder.
    #[error(
        "the database is older than the state folder (epoch {found}, not {expected}): restore a newer dump, fail over to a server that has all \
         that was acknowledged, or remove store.json to go on with what is there"
    )]
    Older {
        /// The highest epoch in the database.
        found: u64,
        /// The epoch of the last start.
        expected: u64,
    },
}

impl From<UnusableDatabase> for UnusableServer {
    fn from(unusable: UnusableDatabase) -> Self {
        match unusable {
            UnusableDatabase::Damaged(reason) => Self::Damaged(reason),
            UnusableDatabase::Unavailable(reason) => Self::Unavailable(reason),
            UnusableDatabase::Lost => Self::Empty,
            UnusableDatabase::OtherCluster { found, expected } => {
                Self::OtherCluster { found, expected }
            }
            UnusableDatabase::Older { found, expected } => Self::Older { found, expected },
        }
    }
}

/// The cure for a database that cannot be used.
const CURE: &str = "restore a backup (packhorse restore FILE --state-dir DIR --replace), or start an empty cluster with --new-cluster, \
                    which moves what is here aside";

/// Returns true if an error says nothing about the database: somebody else holds it, this user may not read it, or memory, room or descriptors are
/// short.
fn is_for_now(error: &sqlx::Error) -> bool {
    // SQLITE_BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, FULL, CANTOPEN, PROTOCOL.
    const FOR_NOW: [u32; 8] = [5, 6, 7, 8, 9, 13, 14, 15];
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    let code = code.and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| FOR_NOW.contains(&(code & 0xff)))
}

impl DatabaseContents {
    /// Reads a database and checks it, without changing anything in its folder that matters: not even a log that cannot be read is
    /// removed.
    pub async fn read(file: &Path) -> Self {
        if !file.exists() {
            return Self::Empty;
        }
        match read(file).await {
            Ok(contents) => contents,
            Err(StoreError::DiskFull(e) | StoreError::Unavailable(e) | StoreError::Database(e))
                if is_for_now(&e) =>
            {
                Self::Unavailable(e.to_string())
            }
            Err(error) => Self::Damaged(reason(error)),
        }
    }

    /// Reads a database of PostgreSQL, whose server checks it.
    pub async fn read_server(url: &PostgresUrl) -> Self {
        let read = tokio::time::timeout(2 * CONNECT_LIMIT, read_server(url));
        match read.await {
            Ok(Ok(contents)) => contents,
            Ok(Err(unreadable @ StoreError::Unreadable { .. })) => {
                Self::Damaged(reason(unreadable))
            }
            Ok(Err(error)) => Self::Unavailable(reason(error)),
            Err(_) => Self::Unavailable("the server does not answer".to_owned()),
        }
    }

    /// Decides whether a gateway may start on this database. `identity` is that of the folder, which one of an earlier version has not.
    ///
    /// # Errors
    /// If the database does not belong to the folder, or knows less than it did.
    pub fn check(
        &self,
        identity: Option<&StoreIdentity>,
        has_model_files: bool,
    ) -> Result<(), UnusableDatabase> {
        match (self, identity) {
            (Self::Damaged(reason), _) => Err(UnusableDatabase::Damaged(reason.clone())),
            (Self::Unavailable(reason), _) => Err(UnusableDatabase::Unavailable(reason.clone())),
            (Self::Empty, Some(_)) => Err(UnusableDatabase::Lost),
            (Self::Empty, None) if has_model_files => Err(UnusableDatabase::Lost),
            (Self::Empty | Self::Rows { .. }, None) => Ok(()),
            (Self::Rows { cluster_id, epoch }, Some(identity)) => {
                if cluster_id.as_ref() != Some(&identity.cluster_id) {
                    let found = cluster_id.as_ref().map_or("none", ClusterId::as_str);
                    Err(UnusableDatabase::OtherCluster {
                        found: found.to_owned(),
                        expected: identity.cluster_id.clone(),
                    })
                } else if *epoch < identity.epoch {
                    Err(UnusableDatabase::Older {
                        found: *epoch,
                        expected: identity.epoch,
                    })
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl Store {
    /// Returns the identity of this store as of now.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn identity(&self) -> Result<StoreIdentity, StoreError> {
        let cluster_id = self.cluster_id().await?;
        let row = sqlx::query("SELECT COALESCE(MAX(epoch), 0) AS epoch FROM epochs")
            .fetch_one(&self.database)
            .await?;
        Ok(StoreIdentity {
            cluster_id,
            epoch: unsigned(&row, "epochs", "epoch")?,
        })
    }
}

/// Returns true if a folder of model files has any.
///
/// # Errors
/// If the folder cannot be read.
pub fn has_model_files(folder: &Path) -> io::Result<bool> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_file()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns what the engine says of an error.
fn reason(error: StoreError) -> String {
    match error {
        StoreError::DiskFull(e) | StoreError::Unavailable(e) | StoreError::Database(e) => {
            e.to_string()
        }
        other @ (StoreError::Unreadable { .. } | StoreError::Superseded(_)) => other.to_string(),
    }
}

async fn read(file: &Path) -> Result<DatabaseContents, StoreError> {
    install_default_drivers();
    let mut database = AnyConnection::connect(&sqlite::url(file, "ro")).await?;
    database.execute("PRAGMA busy_timeout = 5000").await?;
    let check = sqlx::query("PRAGMA quick_check(1)")
        .fetch_one(&mut database)
        .await?;
    let check: String = check.try_get(0)?;
    let contents = if check == "ok" {
        const TABLES: &str = "SELECT name FROM sqlite_master WHERE type = 'table'";
        read_from(&mut database, TABLES).await
    } else {
        Ok(DatabaseContents::Damaged(check))
    };
    database.close().await?;
    contents
}

async fn read_server(url: &PostgresUrl) -> Result<DatabaseContents, StoreError> {
    const TABLES: &str =
        "SELECT tablename::text AS name FROM pg_tables WHERE schemaname = current_schema()";
    install_default_drivers();
    let mut database = AnyConnection::connect(url.secret()).await?;
    let contents = read_from(&mut database, TABLES).await;
    database.close().await?;
    contents
}

async fn read_from(
    database: &mut AnyConnection,
    list_tables: &'static str,
) -> Result<DatabaseContents, StoreError> {
    let mut tables = Vec::new();
    for row in sqlx::query(list_tables).fetch_all(&mut *database).await? {
        tables.push(row.try_get::<String, _>("name")?);
    }
    let has = |name: &str| tables.iter().any(|table| table == name);
    let mut cluster_id = None;
    let mut epoch = 0;
    if has("cluster") {
        let row = sqlx::query("SELECT id FROM cluster WHERE singleton = 1")
            .fetch_optional(&mut *database)
            .await?;
        cluster_id = row.map(|row| parsed(&row, "cluster", "id")).transpose()?;
    }
    if has("epochs") {
        let row = sqlx::query("SELECT COALESCE(MAX(epoch), 0) AS epoch FROM epochs")
            .fetch_one(&mut *database)
            .await?;
        epoch = unsigned(&row, "epochs", "epoch")?;
    }
    let mut has_rows = cluster_id.is_some() || epoch > 0;
    if !has_rows && has("artifacts") {
        let row = sqlx::query("SELECT digest FROM artifacts LIMIT 1")
            .fetch_optional(&mut *database)
            .await?;
        has_rows = row.is_some();
    }
    Ok(if has_rows {
        DatabaseContents::Rows { cluster_id, epoch }
    } else {
        DatabaseContents::Empty
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ClusterId {
        text.parse().unwrap()
    }

    #[test]
    fn a_database_that_knows_less_than_its_folder_is_refused_with_the_cure() {
        use DatabaseContents::{Damaged, Empty, Rows};

        let identity = StoreIdentity {
            cluster_id: id("a"),
            epoch: 7,
        };
        let rows = |cluster: Option<&str>, epoch| Rows {
            cluster_id: cluster.map(id),
            epoch,
        };
        let lost = Some("is empty");
        for (contents, has_identity, has_files, refusal) in [
            // A first start, also one that was interrupted, and the first start of a version with identities.
            (Empty, false, false, None),
            (rows(Some("a"), 3), false, true, None),
            (rows(None, 0), false, true, None),
            // A restart.
            (rows(Some("a"), 7), true, true, None),
            (rows(Some("a"), 9), true, false, None),
            // A folder that was used.
            (Empty, false, true, lost),
            (Empty, true, false, lost),
            (Empty, true, true, lost),
            (rows(Some("b"), 9), true, true, Some("is of cluster b")),
            (rows(None, 9), true, true, Some("is of cluster none")),
            (rows(Some("a"), 6), true, true, Some("epoch 6, not 7")),
            (Damaged("page 3".to_owned()), false, false, Some("page 3")),
        ] {
            let result = contents.check(has_identity.then_some(&identity), has_files);
            match (refusal, &result) {
                (None, Ok(())) => {}
                (Some(text), Err(error)) => {
                    let error = error.to_string();
                    assert!(error.contains(text), "{error}");
                    assert!(error.contains("--new-cluster"), "{error}");
                    assert!(error.contains("packhorse restore"), "{error}");
                }
                _ => panic!("{contents:?}, {has_identity}, {has_files}: {result:?}"),
            }
        }
    }
}
