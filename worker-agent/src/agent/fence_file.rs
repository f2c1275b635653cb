//! The file with the cluster that the agent obeys and the highest epoch that it has seen there.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use packhorse_reconcile::Fence;
use packhorse_service::{StateDir, StateDirError};

/// The name of the file in the state folder.
const FILE: &str = "cluster.json";

/// The stored fence of a state folder.
#[derive(Debug)]
pub(super) struct FenceFile {
    dir: Arc<StateDir>,
    fence: Mutex<Fence>,
}

impl FenceFile {
    /// Reads the fence. A folder without the file, for example that of an agent that has never had a lease, has an empty one.
    pub(super) fn open(dir: Arc<StateDir>) -> Result<Self, StateDirError> {
        let fence = Mutex::new(read(&dir.path().join(FILE))?);
        Ok(Self { dir, fence })
    }

    /// Returns the fence.
    pub(super) fn fence(&self) -> Fence {
        self.fence
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the fence, durably.
    pub(super) fn store(&self, fence: Fence) -> Result<(), StateDirError> {
        let text = serde_json::to_vec_pretty(&fence).expect("a fence is JSON");
        self.dir.write(FILE, &text)?;
        *self.fence.lock().unwrap_or_else(PoisonError::into_inner) = fence;
        Ok(())
    }
}

fn read(path: &Path) -> Result<Fence, StateDirError> {
    let error = |source| StateDirError::Io {
        path: path.to_owned(),
        source,
    };
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|e| error(io::Error::other(e))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Fence::default()),
        Err(e) => Err(error(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_agent_of_the_folder_knows_the_cluster_and_its_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let fence = Fence {
            cluster_id: Some("c".parse().unwrap()),
            highest_epoch: 7,
        };
        let dir = Arc::new(StateDir::open(folder.path()).unwrap());
        let file = FenceFile::open(Arc::clone(&dir)).unwrap();
        assert_eq!(file.fence(), Fence::default());
        file.store(fence.clone()).unwrap();
        assert_eq!(file.fence(), fence);
        assert_eq!(FenceFile::open(dir).unwrap().fence(), fence);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_fence() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{").unwrap();
        let dir = Arc::new(StateDir::open(folder.path()).unwrap());
        let error = FenceFile::open(dir).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
    }
}
