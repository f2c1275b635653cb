//! The folder that holds everything a gateway keeps: the database, model files, tokens, and where its listeners are.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rand::{TryRng as _, rngs::SysRng};

/// A gateway's own folder, locked against a second gateway for as long as this lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another gateway uses it.
    #[error("another gateway runs on the state folder {0}")]
    InUse(PathBuf),
    /// It cannot be made or written.
    #[error("cannot use {path}")]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A secret in a file is too short to be one, or no text.
    #[error("{path} must hold {minimum} or more visible ASCII characters")]
    Secret {
        /// The file.
        path: PathBuf,
        /// The least length.
        minimum: usize,
    },
}

/// The least length of a secret that somebody else made.
const SECRET_MINIMUM: usize = 16;
/// The most bytes that are read of a file that should hold a secret.
const SECRET_FILE_LIMIT: u64 = 4096;

impl StateDir {
    /// Opens and locks the folder. It is made, for its owner alone, if it is not there.
    ///
    /// # Errors
    /// If another gateway uses it, or it cannot be written.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let error = |path: &Path| {
            let path = path.to_owned();
            move |source| StateDirError::Io { path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(error(path))?;
        let path = fs::canonicalize(path).map_err(error(path))?;
        let mode = fs::metadata(&path)
            .map_err(error(&path))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            // It may hold other things as well: whoever made it decides who may enter.
            tracing::warn!(state_dir = %path.display(), "other users can read the state folder");
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(error(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateDirError::InUse(path)),
            Err(TryLockError::Error(source)) => {
                return Err(StateDirError::Io {
                    path: lock_path,
                    source,
                });
            }
        }
        let this = Self { path, _lock: lock };
        this.forget_endpoints();
        Ok(this)
    }

    /// The SQLite database.
    pub fn database(&self) -> PathBuf {
        self.path.join("packhorse.db")
    }

    /// The folder of model files.
    pub fn artifacts(&self) -> PathBuf {
        self.path.join("artifacts")
    }

    /// The secret in the file `name` of this folder; 256 random bits in hexadecimal digits are written there, readable to the
    /// owner only, if there is none yet.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn own_secret(&self, name: &str) -> Result<String, StateDirError> {
        let path = self.path.join(name);
        if !path.exists() {
            let mut bits = [0; 32];
            SysRng
                .try_fill_bytes(&mut bits)
                .map_err(|e| StateDirError::Io {
                    path: path.clone(),
                    source: io::Error::other(e.to_string()),
                })?;
            let text = format!("{}\n", hex::encode(bits));
            self.write(name, text.as_bytes())?;
        }
        read_secret(&path)
    }

    /// Writes where the listeners are, for tools and tests. Removed again at the end.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_endpoints(
        &self,
        inference: SocketAddr,
        admin: SocketAddr,
    ) -> Result<(), StateDirError> {
        let endpoints = serde_json::json!({
            "inference": inference.to_string(),
            "admin": admin.to_string(),
            "pid": std::process::id(),
        });
        self.write("endpoints.json", format!("{endpoints}\n").as_bytes())
    }

    fn forget_endpoints(&self) {
        let _ = fs::remove_file(self.path.join("endpoints.json"));
    }

    /// Writes a file that is either as it was or complete, whatever happens in between.
    fn write(&self, name: &str, content: &[u8]) -> Result<(), StateDirError> {
        let path = self.path.join(name);
        let fresh = self.path.join(format!("{name}.new"));
        let write = || {
            // Left by a process that was killed here; the lock says that it is gone.
            let _ = fs::remove_file(&fresh);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| StateDirError::Io {
            path: path.clone(),
            source,
        })
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        self.forget_endpoints();
    }
}

/// Reads a secret from a file; white space around it does not count.
///
/// # Errors
/// If the file cannot be read or holds no secret.
pub fn read_secret(path: &Path) -> Result<String, StateDirError> {
    use io::Read as _;

    let error = |source| StateDirError::Io {
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
        return Err(StateDirError::Secret {
            path: path.to_owned(),
            minimum: SECRET_MINIMUM,
        });
    }
    Ok(String::from_utf8(text.to_vec()).expect("ASCII is UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_made_once_and_for_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/state");
        let state = StateDir::open(&path).unwrap();
        let first = state.own_secret("admin-token").unwrap();
        assert_eq!(first.len(), 64);
        assert_ne!(first, state.own_secret("agent-token").unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("admin-token")), 0o600);
        drop(state);
        let state = StateDir::open(&path).unwrap();
        assert_eq!(state.own_secret("admin-token").unwrap(), first);
    }

    #[test]
    fn a_second_gateway_on_the_same_folder_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        assert!(matches!(
            StateDir::open(dir.path()),
            Err(StateDirError::InUse(_))
        ));
        drop(first);
        assert!(StateDir::open(dir.path()).is_ok());
    }

    #[test]
    fn endpoints_are_there_while_the_gateway_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        state.write_endpoints(address(1), address(2)).unwrap();
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
