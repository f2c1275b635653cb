//! The gateway's state folder: the database, model files, tokens, and the addresses of the listeners.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use packhorse_service::{StateDir, StateDirError};
use rand::{TryRng as _, rngs::SysRng};

use crate::store::{
    DatabaseContents, PostgresUrl, StoreIdentity, StoreUrl, UnusableDatabase, UnusableServer,
    has_model_files,
};

/// The gateway's state folder, locked against a second gateway until this is dropped.
#[derive(Debug)]
pub struct GatewayDir {
    dir: StateDir,
    /// The folder of the database, where it is another one.
    database_dir: Option<StateDir>,
    store: StoreUrl,
}

/// A secret that cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] StateDirError),
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The operating system has no random numbers.
    #[error("the operating system provides no random numbers: {0}")]
    Random(String),
    /// The secret is too short, or contains other characters than visible ASCII.
    #[error("{} must contain {SECRET_MINIMUM} or more visible ASCII characters", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// A database that a gateway does not start on.
#[derive(Debug, thiserror::Error)]
pub enum CheckDatabaseError {
    /// It is not the one that belongs to the folder, or knows less than it did.
    #[error("--state-dir: {}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The fault, with the cure.
        #[source]
        source: UnusableDatabase,
    },
    /// It is PostgreSQL's, and not the one that belongs to the folder, or cannot be read.
    #[error("--store: {url}")]
    Server {
        /// The database.
        url: PostgresUrl,
        /// The fault, with the cure.
        #[source]
        source: UnusableServer,
    },
    /// The folder cannot be read or changed.
    #[error(transparent)]
    Folder(#[from] StateDirError),
}

/// The least number of characters of a secret.
const SECRET_MINIMUM: usize = 16;
/// The most bytes that are read of a file with a secret.
const SECRET_FILE_LIMIT: u64 = 4096;

impl GatewayDir {
    /// The name of the file with the admin's token.
    pub const ADMIN_TOKEN: &str = "admin-token";
    /// The name of the file with the agents' common token.
    pub const AGENT_TOKEN: &str = "agent-token";

    /// The name of the file with the identity of the store.
    const IDENTITY: &str = "store.json";
    /// The name of the folder with the history.
    const HISTORY: &str = "history";
    /// The files and folders of a store.
    const STORE: [&str; 6] = [
        "packhorse.db",
        "packhorse.db-wal",
        "packhorse.db-shm",
        Self::IDENTITY,
        "artifacts",
        Self::HISTORY,
    ];

    /// Opens and locks the folder. If it does not exist, it is created for its owner only. The database is in the folder, or in `store`; the
    /// folder of a file is locked, too.
    ///
    /// # Errors
    /// If another process uses a folder, or it cannot be written.
    pub fn open(path: &Path, store: Option<StoreUrl>) -> Result<Self, StateDirError> {
        let dir = StateDir::open(path)?;
        let store = store.unwrap_or_else(|| StoreUrl::Sqlite(dir.path().join(Self::STORE[0])));
        let mut this = Self {
            dir,
            database_dir: None,
            store,
        };
        if let StoreUrl::Sqlite(file) = &this.store {
            this.database_dir = this.other_folder(file)?;
        }
        this.remove_endpoints();
        Ok(this)
    }

    /// Locks the folder of a database, if it is another one.
    fn other_folder(&self, file: &Path) -> Result<Option<StateDir>, StateDirError> {
        let folder = match file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if fs::canonicalize(folder).is_ok_and(|folder| folder == self.dir.path()) {
            return Ok(None);
        }
        StateDir::open(folder).map(Some)
    }

    /// Returns where the database is.
    pub fn store(&self) -> &StoreUrl {
        &self.store
    }

    /// Checks that the database is the one that belongs to the folder, and whole. If it is not, and a new cluster is wanted, moves the store
    /// aside.
    ///
    /// # Errors
    /// If the database cannot be used; then nothing is changed.
    pub async fn check_database(&self, new_cluster: bool) -> Result<(), CheckDatabaseError> {
        let path = self.dir.path();
        let at = |file: PathBuf| move |source| StateDirError::Io { path: file, source };
        let identity = self.identity()?;
        let artifacts = self.artifacts();
        let has_files = has_model_files(&artifacts).map_err(at(artifacts))?;
        let contents = match &self.store {
            StoreUrl::Sqlite(file) => DatabaseContents::read(file).await,
            StoreUrl::Postgres(url) => DatabaseContents::read_server(url).await,
        };
        let Err(source) = contents.check(identity.as_ref(), has_files) else {
            return Ok(());
        };
        // A database that cannot be read now may be all right, so that nothing is moved; and a server's is not ours to move.
        let may_begin = match &self.store {
            StoreUrl::Sqlite(_) => !matches!(source, UnusableDatabase::Unavailable(_)),
            StoreUrl::Postgres(_) => source == UnusableDatabase::Lost,
        };
        if !new_cluster || !may_begin {
            return Err(match &self.store {
                StoreUrl::Sqlite(_) => {
                    let path = path.to_owned();
                    CheckDatabaseError::Unusable { path, source }
                }
                StoreUrl::Postgres(url) => {
                    let url = url.clone();
                    let source = source.into();
                    CheckDatabaseError::Server { url, source }
                }
            });
        }
        let aside = self.dir.move_aside(&Self::STORE)?;
        tracing::warn!(
            aside = %aside.display(), reason = %source,
            "the store is moved aside, and an empty cluster starts (--new-cluster)"
        );
        self.move_database_aside()?;
        Ok(())
    }

    /// Moves a database aside that is in another folder, with its log.
    fn move_database_aside(&self) -> Result<(), StateDirError> {
        if let (Some(folder), StoreUrl::Sqlite(file)) = (&self.database_dir, &self.store) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let names = ["", "-wal", "-shm"].map(|suffix| format!("{name}{suffix}"));
            folder.move_aside(&names.each_ref().map(String::as_str))?;
        }
        Ok(())
    }

    /// Returns the identity of the store that the folder is of; `None` before the first start, and after one of an earlier version.
    fn identity(&self) -> Result<Option<StoreIdentity>, StateDirError> {
        let path = self.dir.path().join(Self::IDENTITY);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateDirError::Io { path, source }),
        };
        let identity = serde_json::from_slice(&text);
        identity.map(Some).map_err(|e| StateDirError::Io {
            path,
            source: e.into(),
        })
    }

    /// Writes the identity of the store, durably.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_identity(&self, identity: &StoreIdentity) -> Result<(), StateDirError> {
        let text = serde_json::to_string_pretty(identity).expect("our own messages are JSON");
        self.dir.write(Self::IDENTITY, text.as_bytes())
    }

    /// Returns the path of the folder with the history.
    pub fn history(&self) -> PathBuf {
        self.dir.path().join(Self::HISTORY)
    }

    /// Returns the path of the folder of model files.
    pub fn artifacts(&self) -> PathBuf {
        self.dir.path().join("artifacts")
    }

    /// Returns the paths of the tokens that are created here if no other files are given.
    pub fn token_files(&self) -> [PathBuf; 2] {
        [Self::ADMIN_TOKEN, Self::AGENT_TOKEN].map(|name| self.dir.path().join(name))
    }

    /// Returns the secret in the file `name` of this folder. If the file does not exist, it is created with 256 random bits in hexadecimal
    /// digits, readable to its owner only.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn own_secret(&self, name: &str) -> Result<String, SecretError> {
        let path = self.dir.path().join(name);
        if !path.exists() {
            let text = format!("{}\n", random_secret()?);
            self.dir.write(name, text.as_bytes())?;
        }
        read_secret(&path)
    }

    /// Writes the addresses of the listeners to `endpoints.json`, for tools and tests. The file is removed when this is dropped.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_endpoints(
        &self,
        inference: SocketAddr,
        grpc: Option<SocketAddr>,
        admin: SocketAddr,
    ) -> Result<(), StateDirError> {
        let endpoints = serde_json::json!({
            "inference": inference.to_string(),
            "grpc": grpc.map(|address| address.to_string()),
            "admin": admin.to_string(),
            "pid": std::process::id(),
        });
        let text = format!("{endpoints}\n");
        self.dir.write("endpoints.json", text.as_bytes())
    }

    fn remove_endpoints(&self) {
        let _ = fs::remove_file(self.dir.path().join("endpoints.json"));
    }
}

impl Drop for GatewayDir {
    fn drop(&mut self) {
        self.remove_endpoints();
    }
}

/// Makes a secret: 256 random bits of the operating system, in hexadecimal digits.
///
/// # Errors
/// If the operating system has no random numbers.
pub fn random_secret() -> Result<String, SecretError> {
    Ok(hex::encode(random_bytes::<32>()?))
}

/// Returns random bytes of the operating system.
///
/// # Errors
/// If it has none.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], SecretError> {
    let mut bytes = [0; N];
    let filled = SysRng.try_fill_bytes(&mut bytes);
    filled.map_err(|e| SecretError::Random(e.to_string()))?;
    Ok(bytes)
}

/// Reads a secret from a file, without the white space around it.
///
/// # Errors
/// If the file cannot be read or contains no secret.
pub fn read_secret(path: &Path) -> Result<String, SecretError> {
    let error = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(error)?;
    if file.metadata().map_err(error)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(file = %path.display(), "other users can read a file with a secret");
    }
    let mut text = Vec::new();
    file.take(SECRET_FILE_LIMIT)
        .read_to_end(&mut text)
        .map_err(error)?;
    let text = text.trim_ascii();
    if text.len() < SECRET_MINIMUM || !text.iter().all(u8::is_ascii_graphic) {
        let path = path.to_owned();
        return Err(SecretError::Malformed { path });
    }
    Ok(String::from_utf8(text.to_vec()).expect("ASCII is UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_created_once_and_for_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/state");
        let state = GatewayDir::open(&path, None).unwrap();
        let first = state.own_secret("admin-token").unwrap();
        assert_eq!(first.len(), 64);
        assert_ne!(first, state.own_secret("agent-token").unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path.join("admin-token")), 0o600);
        drop(state);
        let state = GatewayDir::open(&path, None).unwrap();
        assert_eq!(state.own_secret("admin-token").unwrap(), first);
    }

    #[test]
    fn endpoints_exist_while_the_gateway_runs() {
        let dir = tempfile::tempdir().unwrap();
        let state = GatewayDir::open(dir.path(), None).unwrap();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        state
            .write_endpoints(address(1), Some(address(3)), address(2))
            .unwrap();
        let file = dir.path().join("endpoints.json");
        let text = fs::read_to_string(&file).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["inference"], "127.0.0.1:1");
        assert_eq!(json["admin"], "127.0.0.1:2");
        drop(state);
        assert!(!file.exists());
    }

    #[test]
    fn short_or_binary_secrets_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        for bad in [
            &b""[..],
            b"short",
            b"  0123456789abcde\n",
            b"0123456789abcdef\xff",
        ] {
            fs::write(&file, bad).unwrap();
            assert!(read_secret(&file).is_err(), "{bad:?} was accepted");
        }
        fs::write(&file, " 0123456789abcdef\n").unwrap();
        assert_eq!(read_secret(&file).unwrap(), "0123456789abcdef");
    }
}
