//! The changes of the file with the wanted members, of which the kernel tells.

use std::{io, path::Path, thread};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Calls a function after each replacement of a file from now on, until it returns false. It may be called without a change.
///
/// # Errors
/// The kernel watches no more folders for this user.
pub(super) fn watch(file: &Path, changed: impl Fn() -> bool + Send + 'static) -> io::Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let name = name.to_owned();
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    // The file is replaced by another that is moved to its place.
    inotify.add_watch(folder, AddWatchFlags::IN_MOVED_TO)?;
    thread::spawn(move || {
        loop {
            let is_changed = match inotify.read_events() {
                // An event without a name says that others were lost.
                Ok(events) => events
                    .iter()
                    .any(|event| event.name.as_ref().is_none_or(|moved| *moved == name)),
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the members cannot be watched any more");
                    return;
                }
            };
            if is_changed && !changed() {
                return;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_replaced_file_is_noticed_and_its_neighbours_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members.json");
        let (sender, changes) = mpsc::channel();
        watch(&file, move || sender.send(()).is_ok()).unwrap();
        let replace = |name: &str| {
            fs::write(dir.path().join("new"), "{}").unwrap();
            fs::rename(dir.path().join("new"), dir.path().join(name)).unwrap();
        };
        replace("status.json");
        assert!(changes.try_recv().is_err());
        for _ in 0..3 {
            replace("members.json");
            changes.recv_timeout(Duration::from_mins(1)).unwrap();
        }
    }
}
