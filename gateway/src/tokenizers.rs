//! The tokenizers of the models that take texts, each in memory once, however many models have it.
//!
//! A tokenizer is read from its stored file when the first model with it is served, and dropped with the last one.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use packhorse_cluster::ArtifactDigest;
use packhorse_preprocess::{Tokenizer, TokenizerError};
use tokio::runtime::Handle;

/// The tokenizers in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokenizers {
    /// The folder of the stored files.
    folder: Arc<PathBuf>,
    known: Arc<Mutex<BTreeMap<ArtifactDigest, Weak<ModelTokenizer>>>>,
}

/// A tokenizer that is read when it is first needed.
#[derive(Debug)]
pub(crate) struct ModelTokenizer {
    file: PathBuf,
    read: OnceLock<Tokenizer>,
    reading: Mutex<()>,
}

/// The reason why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadTokenizerError {
    /// The file cannot be read.
    #[error("the tokenizer's file cannot be read: {0}")]
    File(#[from] io::Error),
    /// The file is something else.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Tokenizers {
    /// Creates a store of tokenizers whose files are in this folder, under the digits of their digests.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder: Arc::new(folder),
            known: Arc::default(),
        }
    }

    /// Returns the tokenizer of a file, which need not have been read yet.
    pub(crate) fn get(&self, digest: ArtifactDigest) -> Arc<ModelTokenizer> {
        let known = self.known.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if let Some(tokenizer) = known.get(&digest).and_then(Weak::upgrade) {
            return tokenizer;
        }
        known.retain(|_, tokenizer| tokenizer.strong_count() > 0);
        let tokenizer = Arc::new(ModelTokenizer {
            file: self.folder.join(digest.to_hex()),
            read: OnceLock::new(),
            reading: Mutex::default(),
        });
        known.insert(digest, Arc::downgrade(&tokenizer));
        tokenizer
    }
}

impl ModelTokenizer {
    /// Returns the tokenizer. It is read, which blocks, unless it was before.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, ReadTokenizerError> {
        if let Some(tokenizer) = self.read.get() {
            return Ok(tokenizer);
        }
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokenizer) = self.read.get() {
            return Ok(tokenizer);
        }
        let mut bytes = Vec::new();
        let file = File::open(&self.file)?;
        let read = file.take(Tokenizer::MAX_BYTES + 1).read_to_end(&mut bytes);
        read?;
        let tokenizer = Tokenizer::read(&bytes)?;
        Ok(self.read.get_or_init(|| tokenizer))
    }

    /// Begins to read the tokenizer, so that the first request need not wait for it.
    pub(crate) fn prepare(self: Arc<Self>) {
        if let Ok(runtime) = Handle::try_current() {
            // A request tells why it cannot be read.
            runtime.spawn_blocking(move || self.tokenizer().map(drop).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_share_a_tokenizer_which_goes_with_the_last_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let digest = ArtifactDigest::from_sha256([7; 32]);
        let tokenizers = Tokenizers::new(folder.path().to_owned());
        let one = tokenizers.get(digest);
        let error = one.tokenizer().unwrap_err().to_string();
        assert!(
            error.starts_with("the tokenizer's file cannot be read"),
            "{error}"
        );
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../crates/preprocess/tests/texts/wordpiece.json"
        );
        std::fs::copy(file, folder.path().join(digest.to_hex())).unwrap();
        one.tokenizer().unwrap();
        let other = tokenizers.get(digest);
        assert!(Arc::ptr_eq(&one, &other));
        std::fs::remove_file(folder.path().join(digest.to_hex())).unwrap();
        other.tokenizer().unwrap();
        drop((one, other));
        tokenizers.get(digest).tokenizer().unwrap_err();
    }
}
