//! The files of the history: each has the blocks of an hour, or those from a start of the gateway on. They are appended to, and deleted when all of their
//! blocks are too old.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use packhorse_history::{Block, FINE_MS, FINE_SPAN_MS, History, MINUTE_MS, SPAN_MS, segment};

use crate::store::unix_ms;

/// The time of which a file has the blocks.
const FILE_MS: u64 = 3_600_000;
/// The largest file that is read: an hour of a thousand models takes a tenth.
const MAX_FILE: u64 = 256 << 20;

/// The files of the history.
#[derive(Debug)]
pub(super) struct Files {
    /// None if nothing is written.
    folder: Option<PathBuf>,
    fine: Kind,
    minutes: Kind,
    is_failing: bool,
}

/// The files with blocks of one length.
#[derive(Debug)]
struct Kind {
    prefix: &'static str,
    length_ms: u64,
    span_ms: u64,
    file: Option<OpenFile>,
}

/// The file that is appended to.
#[derive(Debug)]
struct OpenFile {
    file: File,
    begin_ms: u64,
    /// The bytes of its whole blocks.
    length: u64,
}

impl Files {
    pub(super) fn new(folder: PathBuf) -> Self {
        let kind = |prefix, length_ms, span_ms| Kind {
            prefix,
            length_ms,
            span_ms,
            file: None,
        };
        Self {
            folder: Some(folder),
            fine: kind("seconds", FINE_MS, FINE_SPAN_MS),
            minutes: kind("minutes", MINUTE_MS, SPAN_MS),
            is_failing: false,
        }
    }

    /// Returns files that nothing is written to.
    pub(super) fn nowhere() -> Self {
        Self {
            folder: None,
            ..Self::new(PathBuf::new())
        }
    }

    /// Reads what the files have, up to now.
    pub(super) fn restore(&mut self, history: &mut History) {
        let Some(folder) = self.folder.clone() else {
            return;
        };
        if let Err(e) = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
        {
            tracing::warn!(error = %e, folder = %folder.display(), "the history is kept in memory alone");
            self.folder = None;
            return;
        }
        let now = u64::try_from(unix_ms()).unwrap_or_default();
        self.minutes.read(&folder, now, |minute| {
            history.restore_minute(minute);
        });
        let mut completed = Vec::new();
        self.fine.read(&folder, now, |block| {
            completed.extend(history.add(block));
        });
        self.append(None, &completed);
    }

    /// Appends a block, and minutes that are complete by it. What cannot be written is told once, and is missing after the next restart.
    pub(super) fn append(&mut self, block: Option<&Block>, minutes: &[Block]) {
        let Some(folder) = &self.folder else {
            return;
        };
        let fine = block
            .into_iter()
            .map(|block| self.fine.append(folder, block));
        let fine: Vec<io::Result<()>> = fine.collect();
        let minutes = minutes
            .iter()
            .map(|minute| self.minutes.append(folder, minute));
        let written: io::Result<()> = fine.into_iter().chain(minutes).collect();
        match written {
            Ok(()) => self.is_failing = false,
            Err(e) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(error = %e, folder = %folder.display(), "the history is not written; what is not will be a gap after a restart");
            }
            Err(_) => {}
        }
    }
}

impl Kind {
    /// Returns the files with the begins of their first blocks, in the order of these.
    fn list(&self, folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let begin = name.and_then(|name| {
                let begin = name.strip_prefix(self.prefix)?.strip_prefix('-')?;
                begin.parse().ok()
            });
            files.extend(begin.map(|begin| (begin, path)));
        }
        files.sort();
        Ok(files)
    }

    /// Reads the blocks of the span before `now`.
    fn read(&self, folder: &Path, now: u64, mut take: impl FnMut(&Block)) {
        let files = self.list(folder).unwrap_or_else(|e| {
            tracing::warn!(error = %e, folder = %folder.display(), "the history is not read");
            Vec::new()
        });
        for (_, path) in files {
            let read = fs::metadata(&path).and_then(|metadata| {
                if metadata.len() > MAX_FILE {
                    return Err(io::Error::from(io::ErrorKind::FileTooLarge));
                }
                fs::read(&path)
            });
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(e) => {
                    tracing::warn!(error = %e, file = %path.display(), "a file of the history is left out");
                    continue;
                }
            };
            let length_ms = u32::try_from(self.length_ms).unwrap_or_default();
            let blocks = segment::blocks(&bytes, length_ms);
            // A clock that was set back has left blocks of the future.
            let known = blocks.filter(|block| {
                block.begin_ms <= now && now - block.begin_ms <= self.span_ms + FILE_MS
            });
            known.for_each(|block| take(&block));
        }
    }

    fn append(&mut self, folder: &Path, block: &Block) -> io::Result<()> {
        let Some(frame) = segment::frame(block) else {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        };
        let is_full = |open: &OpenFile| block.begin_ms >= open.begin_ms + FILE_MS;
        if self.file.as_ref().is_none_or(is_full) {
            self.file = Some(self.begin(folder, block.begin_ms)?);
        }
        let Some(open) = &mut self.file else {
            return Ok(());
        };
        let written = open.file.write_all(&frame);
        if written.is_ok() {
            open.length += frame.len() as u64;
        } else {
            // What was written in part would hide what comes after it; the next block begins a file of its own.
            let _ = open.file.set_len(open.length);
            self.file = None;
        }
        written
    }

    /// Begins a file, and deletes those whose blocks are all too old.
    fn begin(&self, folder: &Path, begin_ms: u64) -> io::Result<OpenFile> {
        for (begin, path) in self.list(folder)? {
            if begin + FILE_MS + self.span_ms <= begin_ms {
                fs::remove_file(path)?;
            }
        }
        let path = folder.join(format!("{}-{begin_ms}", self.prefix));
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let mut file = new?;
        let head = segment::head(u32::try_from(self.length_ms).unwrap_or_default());
        if let Err(e) = file.write_all(&head) {
            // It has the name that the next try may need.
            let _ = fs::remove_file(path);
            return Err(e);
        }
        Ok(OpenFile {
            file,
            begin_ms,
            length: head.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(begin_ms: u64) -> Block {
        Block {
            begin_ms,
            covered_ms: FINE_MS,
            ..Block::default()
        }
    }

    /// Returns the begins of the blocks that a gateway finds.
    fn found(folder: &Path) -> Vec<u64> {
        let mut begins = Vec::new();
        let now = u64::try_from(unix_ms()).unwrap();
        let files = Files::new(folder.to_owned());
        files
            .fine
            .read(folder, now, |block| begins.push(block.begin_ms));
        begins
    }

    #[test]
    fn a_torn_end_costs_one_block_and_what_is_written_after_a_restart_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let now = u64::try_from(unix_ms()).unwrap() / FINE_MS * FINE_MS;
        let mut files = Files::new(folder.path().to_owned());
        for ago in [5, 4, 3] {
            files.append(Some(&block(now - ago * FINE_MS)), &[]);
        }
        let [(_, path)] = &files.fine.list(folder.path()).unwrap()[..] else {
            panic!("one file");
        };
        let length = fs::metadata(path).unwrap().len();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(length - 3).unwrap();
        let mut after = Files::new(folder.path().to_owned());
        after.append(Some(&block(now - FINE_MS)), &[]);
        let expected = [5, 4, 1].map(|ago| now - ago * FINE_MS);
        assert_eq!(found(folder.path()), expected);
    }

    #[test]
    fn files_whose_blocks_are_too_old_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path().to_owned());
        for hour in 0..10 {
            files.append(Some(&block(hour * FILE_MS)), &[]);
            assert!(files.fine.list(folder.path()).unwrap().len() <= 3);
        }
    }

    #[test]
    fn where_nothing_can_be_written_the_history_is_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "a file").unwrap();
        let mut files = Files::new(taken);
        let mut history = History::new(1 << 20);
        files.restore(&mut history);
        files.append(Some(&block(FINE_MS)), &[block(0)]);
        assert_eq!(history.bytes(), 0);
        let mut files = Files::new(folder.path().join("gone"));
        files.append(Some(&block(FINE_MS)), &[]);
        assert!(files.is_failing);
    }
}
