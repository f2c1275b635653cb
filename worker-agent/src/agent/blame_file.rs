//! The file with the models that ended pool workers, which the next agent of the folder knows, too: they would end them again.

use std::{
    collections::BTreeMap,
    fs, io,
    sync::{Arc, Mutex, MutexGuard},
};

use packhorse_cluster::ModelId;
use packhorse_service::StateDir;

use crate::mutex::lock;

/// The name of the file in the state folder.
const FILE: &str = "blamed.json";
/// The most models of which the file tells.
const MOST_MODELS: usize = 1000;

/// The number of ends of pool workers that each model is blamed for.
#[derive(Debug)]
pub(super) struct BlameFile {
    dir: Arc<StateDir>,
    ends: Mutex<BTreeMap<ModelId, u32>>,
}

impl BlameFile {
    /// Reads the file. One that cannot be read tells of no model: the worst is that a model ends a pool worker once more.
    pub(super) fn open(dir: Arc<StateDir>) -> Self {
        let ends = match fs::read(dir.path().join(FILE)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(%error, "{FILE} cannot be read; it begins anew");
                BTreeMap::new()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "{FILE} cannot be read; it begins anew");
                }
                BTreeMap::new()
            }
        };
        Self {
            dir,
            ends: Mutex::new(ends),
        }
    }

    /// Returns the number of ends that a model is blamed for.
    pub(super) fn ends(&self, model: &ModelId) -> u32 {
        self.lock().get(model).copied().unwrap_or(0)
    }

    /// Blames a model for one more end, and returns their number.
    pub(super) fn blame(&self, model: &ModelId) -> u32 {
        let mut ends = self.lock();
        let times = ends.entry(model.clone()).or_default();
        *times = times.saturating_add(1);
        let times = *times;
        while ends.len() > MOST_MODELS {
            ends.pop_first();
        }
        let text = serde_json::to_vec_pretty(&*ends).expect("models and numbers are JSON");
        if let Err(error) = self.dir.write(FILE, &text) {
            tracing::warn!(%error, "{FILE} cannot be written; the next agent does not know which models ended shared processes");
        }
        times
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, u32>> {
        lock(&self.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_agent_of_the_folder_knows_who_ended_pool_workers() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Arc::new(StateDir::open(folder.path()).unwrap());
        let (one, other): (ModelId, ModelId) = ("m:1".parse().unwrap(), "n:2".parse().unwrap());
        let file = BlameFile::open(Arc::clone(&dir));
        assert_eq!((file.blame(&one), file.blame(&one)), (1, 2));
        let next = BlameFile::open(Arc::clone(&dir));
        assert_eq!((next.ends(&one), next.ends(&other)), (2, 0));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(BlameFile::open(dir).ends(&one), 0);
    }
}
