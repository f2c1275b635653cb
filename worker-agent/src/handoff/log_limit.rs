//! The limit of the logs of processes that outlive the agent: workers and MPS daemons.
//!
//! Standard output and standard error of such a process are a file, because a pipe would end with the agent. A worker itself keeps its file
//! small, whatever it or a library writes to it, so that the limit holds without an agent, too; the agent shortens those of MPS daemons. The
//! file must be open for appending.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
    thread,
    time::Duration,
};

/// The size above which a log is shortened, in bytes.
pub const LOG_LIMIT: u64 = 8 << 20;
/// The bytes at the end of a log that are kept when it is shortened.
const KEPT: u64 = 1 << 20;
/// The time between two looks at the size of the log.
const INTERVAL: Duration = Duration::from_secs(1);
/// The first line of a log that was shortened.
const MARK: &[u8] = b"[earlier lines were removed]\n";

/// Keeps the log within [`LOG_LIMIT`] and what is written within a second, until the process ends.
pub(super) fn watch(log: &Path) {
    let log = log.to_owned();
    thread::spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            match shorten_log(&log) {
                // A worker that a person has started has no log file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                // What is lost on a full disk are earlier lines.
                Err(error) => tracing::debug!(%error, "the log is not shortened"),
                Ok(()) => {}
            }
        }
    });
}

/// Removes all but the end of a log that is longer than [`LOG_LIMIT`]. A line that is written in the middle of this may be lost.
///
/// # Errors
/// If the file cannot be read or written.
pub fn shorten_log(log: &Path) -> io::Result<()> {
    shorten(log, LOG_LIMIT, KEPT)
}

/// Removes all but the last `kept` bytes of a log that is longer than `limit`.
fn shorten(log: &Path, limit: u64, kept: u64) -> io::Result<()> {
    let length = std::fs::metadata(log)?.len();
    if length <= limit {
        return Ok(());
    }
    let mut file: File = OpenOptions::new().read(true).append(true).open(log)?;
    file.seek(SeekFrom::Start(length.saturating_sub(kept)))?;
    let mut tail = Vec::new();
    (&file).take(kept).read_to_end(&mut tail)?;
    // Begins with a whole line.
    let start = tail
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(0, |end| end + 1);
    file.set_len(0)?;
    file.write_all(&[MARK, &tail[start..]].concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_over_its_limit_keeps_its_last_lines_and_goes_on_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        let mut writer = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        for number in 0..1000 {
            writeln!(writer, "line {number}").unwrap();
        }
        shorten(&path, 20_000, 100).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        assert!(
            whole.starts_with("line 0\n"),
            "within the limit nothing is removed"
        );

        shorten(&path, 5_000, 100).unwrap();
        writeln!(writer, "line 1000").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.len() <= 100 + MARK.len() + "line 1000\n".len(),
            "{text}"
        );
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("[earlier lines were removed]"));
        let rest: Vec<&str> = lines.collect();
        assert!(rest.iter().all(|line| line.starts_with("line ")), "{text}");
        assert_eq!(rest[rest.len() - 2..], ["line 999", "line 1000"]);
    }

    #[test]
    fn a_log_without_a_line_end_is_shortened_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        fs::write(&path, vec![b'x'; 9_000]).unwrap();
        shorten(&path, 5_000, 100).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 100 + MARK.len() as u64);
        assert!(shorten(&dir.path().join("none"), 1, 1).is_err());
    }
}
