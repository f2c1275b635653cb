//! A place for a database of either engine, which goes with the test.

use std::path::Path;

use packhorse_gateway::store::{Store, StoreUrl};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _};
use tempfile::TempDir;

use crate::postgres_server::{Server, shared};

/// A place for a database, and a folder.
pub(crate) struct Place {
    pub(crate) url: StoreUrl,
    folder: TempDir,
    /// The URL of the server, without the database.
    server_url: Option<String>,
    _server: Option<Server>,
}

impl Place {
    /// Returns a place in a file.
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            url: StoreUrl::Sqlite(folder.path().join("packhorse.db")),
            folder,
            server_url: None,
            _server: None,
        }
    }

    /// Returns a place on a server, if there is one.
    pub(crate) async fn postgres() -> Option<Self> {
        if let Some(url) = shared() {
            return Some(Self::on(url, None).await);
        }
        let server = Server::start()?;
        Some(Self::on(server.url("postgres"), Some(server)).await)
    }

    async fn on(server_url: String, server: Option<Server>) -> Self {
        let url = make_database(&server_url).await;
        Self {
            url: url.parse().unwrap(),
            folder: tempfile::tempdir().unwrap(),
            server_url: Some(server_url),
            _server: server,
        }
    }

    /// Returns another place of the same engine.
    pub(crate) async fn another(&self) -> Self {
        match &self.server_url {
            None => Self::sqlite(),
            Some(url) => Self::on(url.clone(), None).await,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open_at(&self.url).await.unwrap()
    }

    /// Returns the text of the URL as the engine has it.
    pub(crate) fn engine_url(&self) -> String {
        match (&self.url, &self.server_url) {
            (StoreUrl::Sqlite(file), _) => format!("sqlite://{}?mode=rwc", file.display()),
            (StoreUrl::Postgres(url), Some(server)) => {
                let name = url.to_string();
                let name = name.rsplit('/').next().unwrap().to_owned();
                database_url(server, &name)
            }
            _ => unreachable!("a place on a server has one"),
        }
    }

    /// Opens a connection of its own.
    pub(crate) async fn connect(&self) -> AnyConnection {
        sqlx::any::install_default_drivers();
        AnyConnection::connect(&self.engine_url()).await.unwrap()
    }

    /// Carries out statements, for example to make the database as an older version has left it.
    pub(crate) async fn carry_out(&self, statements: &[&'static str]) {
        let mut connection = self.connect().await;
        for statement in statements {
            connection.execute(*statement).await.unwrap();
        }
        connection.close().await.unwrap();
    }
}

/// Makes a database on a server, and returns its URL.
pub(crate) async fn make_database(server_url: &str) -> String {
    sqlx::any::install_default_drivers();
    let name = format!("t{}", hex::encode(rand::random::<[u8; 8]>()));
    let mut connection = AnyConnection::connect(server_url).await.unwrap();
    let statement = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    connection.execute(statement).await.unwrap();
    connection.close().await.unwrap();
    database_url(server_url, &name)
}

/// Replaces the database in the URL of a server.
fn database_url(server_url: &str, name: &str) -> String {
    let (base, query) = server_url.split_once('?').unwrap_or((server_url, ""));
    let (base, _) = base.rsplit_once('/').unwrap();
    format!("{base}/{name}?{query}")
}
