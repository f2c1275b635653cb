//! The state folder of a service: locked, readable to its owner only, with files that are replaced atomically.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// The most bytes that are read of a lock file, which contains a process id.
const LOCK_FILE_LIMIT: u64 = 32;
/// The largest number of replaced states that a folder keeps.
const MAX_REPLACED: u32 = 1000;

/// A service's state folder, locked against other processes until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// A state folder, or a file in it, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another process has locked the folder.
    #[error(
        "--state-dir: {} is in use by another process{}; stop it, or choose another folder",
        path.display(), holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The id of the other process, if it is known.
        holder: Option<u32>,
    },
    /// The operating system refuses.
    #[error("cannot use {}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

impl StateDir {
    /// Opens and locks the folder. If it does not exist, it is created for its owner only.
    ///
    /// # Errors
    /// If another process uses the folder, or it cannot be created or written.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        create_private_dir(path).map_err(error_at(path))?;
        let path = fs::canonicalize(path).map_err(error_at(path))?;
        let metadata = fs::metadata(&path).map_err(error_at(&path))?;
        // The group of an agent's workers passes through the folder to theirs.
        if metadata.permissions().mode() & 0o067 != 0 {
            // The folder may contain other files: its creator decides who may read it.
            tracing::warn!(state_dir = %path.display(), "other users can read the state folder");
        }
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(error_at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = read_holder(lock);
                return Err(StateDirError::InUse { path, holder });
            }
            Err(TryLockError::Error(source)) => return Err(error_at(&lock_path)(source)),
        }
        write_holder(&mut lock).map_err(error_at(&lock_path))?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only its owner can read. After a crash it has its old or its new content.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StateDirError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!("{name}.new"));
        let write = || {
            // A process that was killed here has left the file. The lock guarantees that it no longer runs.
            let _ = fs::remove_file(&temporary);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(error_at(&path))
    }

    /// Moves what is there of these files and folders into a new folder, `replaced-1`, `replaced-2`, …, and returns its path.
    ///
    /// # Errors
    /// If something cannot be moved, or a thousand such folders exist.
    pub fn move_aside(&self, names: &[&str]) -> Result<PathBuf, StateDirError> {
        let aside = (1..=MAX_REPLACED)
            .map(|number| self.path.join(format!("replaced-{number}")))
            .find(|path| !path.exists());
        let aside = aside.ok_or_else(|| {
            let full = format!("it has {MAX_REPLACED} replaced states; remove some");
            error_at(&self.path)(io::Error::other(full))
        })?;
        create_private_dir(&aside).map_err(error_at(&aside))?;
        for name in names {
            let path = self.path.join(name);
            if path.exists() {
                fs::rename(&path, aside.join(name)).map_err(error_at(&path))?;
            }
        }
        let folder = File::open(&self.path);
        let synced = folder.and_then(|folder| folder.sync_all());
        synced.map_err(error_at(&self.path))?;
        Ok(aside)
    }
}

/// Creates a folder that only its owner can enter, with its parents, if it does not exist.
///
/// # Errors
/// If the folder cannot be created.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

fn error_at(path: &Path) -> impl FnOnce(io::Error) -> StateDirError {
    let path = path.to_owned();
    move |source| StateDirError::Io { path, source }
}

fn read_holder(lock: File) -> Option<u32> {
    let mut text = String::new();
    lock.take(LOCK_FILE_LIMIT).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        let error = StateDir::open(dir.path()).unwrap_err();
        let StateDirError::InUse { path, holder } = &error else {
            panic!("{error}")
        };
        assert_eq!(path, first.path());
        assert_eq!(*holder, Some(std::process::id()));
        let text = format!(
            "--state-dir: {} is in use by another process (process {}); stop it, or choose another folder",
            path.display(),
            std::process::id()
        );
        assert_eq!(error.to_string(), text);
        drop(first);
        assert!(StateDir::open(dir.path()).is_ok());
    }

    #[test]
    fn folder_and_files_are_private_and_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("a/state")).unwrap();
        for content in ["first", "second"] {
            state.write("file", content.as_bytes()).unwrap();
            let file = state.path().join("file");
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(state.path()), 0o700);
            assert_eq!(mode(&file), 0o600);
        }
    }

    #[test]
    fn what_is_replaced_is_kept_in_a_folder_of_its_own_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        for number in 1..=2 {
            state.write("file", b"old").unwrap();
            fs::create_dir(state.path().join("files")).unwrap();
            let aside = state.move_aside(&["file", "files", "missing"]).unwrap();
            assert_eq!(aside, state.path().join(format!("replaced-{number}")));
            assert_eq!(fs::read_to_string(aside.join("file")).unwrap(), "old");
            assert!(aside.join("files").is_dir());
            assert!(!state.path().join("file").exists());
        }
    }
}
