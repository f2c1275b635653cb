//! Values that are made of files, and made again when the files change.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{error::TlsFileError, pem::PemFile};

type Make<T> = Box<dyn Fn(&[PemFile]) -> Result<T, TlsFileError> + Send + Sync>;

/// A value that is made of files. Their content counts and not their times, so that it makes no difference whether a file is written
/// anew, renamed or, as by Kubernetes, reached through another symbolic link. While the files cannot be used, the former value stays.
pub struct Reloaded<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// The content that the value was made of.
    content: Vec<Vec<u8>>,
    /// The reason why the present content cannot be used.
    broken: Option<TlsFileError>,
}

/// The result of another look at the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// There is nothing new.
    Unchanged,
    /// There is a new value.
    Replaced,
    /// The files changed, and cannot be used now; the former value stays.
    Broken(TlsFileError),
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl<T> Reloaded<T> {
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        make: impl Fn(&[PemFile]) -> Result<T, TlsFileError> + Send + Sync + 'static,
    ) -> Result<Self, TlsFileError> {
        let files = read(&paths)?;
        let value = Arc::new(make(&files)?);
        Ok(Self {
            paths,
            make: Box::new(make),
            state: Mutex::new(State {
                value,
                content: files.into_iter().map(|file| file.content).collect(),
                broken: None,
            }),
        })
    }

    /// Returns the files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the last value that could be made.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.lock().value)
    }

    /// Returns the reason why the files could not be used when they were last looked at.
    pub fn broken(&self) -> Option<TlsFileError> {
        self.lock().broken.clone()
    }

    /// Reads the files, and makes a new value if their content has changed. The same problem is reported once.
    pub fn refresh(&self) -> Refresh {
        let files = read(&self.paths);
        let mut state = self.lock();
        let made = files.and_then(|files| {
            let same = files.iter().map(|file| &file.content).eq(&state.content);
            let value = (!same).then(|| (self.make)(&files)).transpose()?;
            Ok(value.map(|value| (value, files)))
        });
        match made {
            Ok(None) => {
                state.broken = None;
                Refresh::Unchanged
            }
            Ok(Some((value, files))) => {
                *state = State {
                    value: Arc::new(value),
                    content: files.into_iter().map(|file| file.content).collect(),
                    broken: None,
                };
                Refresh::Replaced
            }
            Err(error) if state.broken.as_ref() == Some(&error) => Refresh::Unchanged,
            Err(error) => {
                state.broken = Some(error.clone());
                Refresh::Broken(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<PemFile>, TlsFileError> {
    paths.iter().map(|path| PemFile::read(path)).collect()
}
