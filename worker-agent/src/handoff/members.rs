//! The members of a pool worker: the replicas that its one process runs, which come and go while it runs.
//!
//! The hand-over folder of a pool worker has three things more than that of another: `members.json`, in which the agent names the
//! members that it wants; a hand-over folder for each, by the replica's id, with its task and its status; and `running` and `loading`,
//! in which the worker notes the model for which it works at the moment. When the process crashes, these say for whom.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use packhorse_cluster::{ModelId, ReplicaId};

use super::{Handoff, HandoffError, read_regular};

/// The file with the members that the agent wants.
const MEMBERS: &str = "members.json";
/// The most bytes of a note.
const LONGEST_NOTE: usize = 512;

/// The members that an agent wants of a pool worker. Each has the number of its start, which is another one for each time that it begins.
pub type Members = BTreeMap<ReplicaId, u64>;

/// The work of a pool worker for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It runs a batch.
    Running,
    /// It loads the program.
    Loading,
}

impl Work {
    /// Returns the name of the file with its note.
    fn file(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Loading => "loading",
        }
    }
}

impl Handoff {
    /// Replaces the members that are wanted, in a file that this function has shared with the pool worker. Called by the agent.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_members(
        &self,
        members: &Members,
        share: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), HandoffError> {
        self.write_shared(MEMBERS, members, share)
    }

    /// Returns the members that are wanted; none before the agent has named any.
    ///
    /// # Errors
    /// The file cannot be read, or is something else.
    pub fn read_members(&self) -> Result<Members, HandoffError> {
        Ok(self.read(MEMBERS)?.unwrap_or_default())
    }

    /// Returns the path of the file with the members.
    pub fn members_path(&self) -> PathBuf {
        self.dir.join(MEMBERS)
    }

    /// Returns the hand-over folder of a member, within that of the pool worker.
    #[must_use]
    pub fn member(&self, replica: ReplicaId) -> Self {
        Self::new(self.dir.join(replica.to_string()))
    }

    /// Returns the model for which a pool worker that has ended did this work at its end; `None` if for none. Called by the agent.
    pub fn read_note(&self, work: Work) -> Option<ModelId> {
        let content = read_regular(&self.dir.join(work.file())).ok()?;
        let text = content.split(|byte| *byte == b'\n').next()?;
        str::from_utf8(text).ok()?.parse().ok()
    }
}

/// The note of a pool worker about one kind of work, in a file that a crash leaves behind. To write it takes a microsecond.
#[derive(Debug)]
pub struct WorkNote {
    file: File,
}

impl WorkNote {
    /// Creates the note of a kind of work, for no model.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(handoff: &Handoff, work: Work) -> io::Result<Self> {
        let path = handoff.dir.join(work.file());
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).open(path)?;
        let note = Self { file };
        note.end();
        Ok(note)
    }

    /// Notes that work for a model begins.
    pub fn begin(&self, model: &ModelId) {
        let mut line = model.to_string().into_bytes();
        line.truncate(LONGEST_NOTE);
        line.push(b'\n');
        self.write(&line);
    }

    /// Notes that the work has ended.
    pub fn end(&self) {
        self.write(b"\n");
    }

    /// Writes the first line. Without it, as on a full disk, a crash has no known cause.
    fn write(&self, line: &[u8]) {
        let _ = self.file.write_all_at(line, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        assert_eq!(handoff.read_members().unwrap(), Members::new());
        let members = Members::from([("5-1".parse().unwrap(), 1), ("5-2".parse().unwrap(), 7)]);
        handoff.write_members(&members, |_| Ok(())).unwrap();
        assert_eq!(handoff.read_members().unwrap(), members);
    }

    #[test]
    fn a_note_names_the_model_of_the_work_that_has_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(dir.path());
        assert_eq!(handoff.read_note(Work::Running), None);
        let note = WorkNote::create(&handoff, Work::Running).unwrap();
        assert_eq!(handoff.read_note(Work::Running), None);
        for model in ["a-long-name:12", "m:1"] {
            let model: ModelId = model.parse().unwrap();
            note.begin(&model);
            assert_eq!(handoff.read_note(Work::Running), Some(model));
            assert_eq!(handoff.read_note(Work::Loading), None);
        }
        note.end();
        assert_eq!(handoff.read_note(Work::Running), None);
    }
}
