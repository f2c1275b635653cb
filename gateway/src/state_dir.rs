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

use crate::store::{DatabaseContents, StoreIdentity, UnusableDatabase, has_model_files};

/// The gateway's state folder, locked against a second gateway until this is dropped.
#[derive(Debug)]
pub struct GatewayDir {
    dir: StateDir,
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

    /// Opens and locks the folder. If it does not exist, it is created for its owner only.
    ///
    /// # Errors
    /// If another process uses the folder, or it cannot be written.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let this = Self {
            dir: StateDir::open(path)?,
        };
        this.remove_endpoints();
        Ok(this)
    }

    /// Returns the path of the SQLite database.
    pub fn database(&self) -> PathBuf {
        self.dir.path().join("packhorse.db")
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
        let contents = DatabaseContents::read(&self.database()).await;
        let Err(source) = contents.check(identity.as_ref(), has_files) else {
            return Ok(());
        };
        // A database that cannot be read now may be all right, so that nothing is moved.
        if !new_cluster || matches!(source, UnusableDatabase::Unavailable(_)) {
            let path = path.to_owned();
            return Err(CheckDatabaseError::Unusable { path, source });
        }
        let aside = self.dir.move_aside(&Self::STORE)?;
        tracing::warn!(
            aside = %aside.display(), reason = %source,
            "the store is moved aside, and an empty cluster starts (--new-cluster)"
        );
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
        let state = GatewayDir::open(&path).unwrap();
        let first = state.own_secret("admin-token").unwrap();
        assert_eq!(first.len(), 64);
        assert_ne!(first, state.own_secret("agent-token").unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path.join("admin-token")), 0o600);
        drop(state);
        let state = GatewayDir::open(&path).unwrap();
        assert_eq!(state.own_secret("admin-token").unwrap(), first);
    }

    #[test]
    fn endpoints_exist_while_the_gateway_runs() {
        let dir = tempfile::tempdir().unwrap();
        let state = GatewayDir::open(dir.path()).unwrap();
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
