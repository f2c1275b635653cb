//! The last line of a process's log, which is shown as the reason for its end.

use std::{
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use packhorse_worker_agent::handoff::open_regular;

/// The most bytes that are read from the end of a log.
const TAIL: u64 = 64 << 10;
/// The most characters of a line that is shown.
const LONGEST: usize = 300;

/// Returns the last line of a log that is not empty, without colours and paths, and shortened.
pub(super) fn last_line(log: &Path) -> Option<String> {
    let mut file = open_regular(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    clean_last_line(&String::from_utf8_lossy(&tail))
}

fn clean_last_line(text: &str) -> Option<String> {
    let before_backtrace = text.rsplit_once("stack backtrace:\n");
    let line = before_backtrace
        .map_or(text, |(before, _)| before)
        .lines()
        .map(without_colours)
        .rfind(|line| !line.trim().is_empty() && !line.starts_with("note: "))?;
    let words = line.split_whitespace().map(|word| {
        let path = word.contains('/') && word.len() > 1;
        if path { "…" } else { word }
    });
    let words: Vec<&str> = words.collect();
    Some(
        words
            .join(" ")
            .chars()
            .filter(|c| !c.is_control())
            .take(LONGEST)
            .collect(),
    )
}

/// Removes terminal escape sequences, each of which reaches from ESC to a letter.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| c.is_ascii_alphabetic())
            .map_or(part.len(), |i| i + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_shown_without_paths_and_colours() {
        for (log, line) in [
            ("", None),
            ("\n \n", None),
            ("first\nsecond\n\n", Some("second")),
            (
                "\u{1b}[31mERROR\u{1b}[0m load: cannot open /home/x/model.pt now",
                Some("ERROR load: cannot open … now"),
            ),
            ("boom\nnote: run with `RUST_BACKTRACE=1`\n", Some("boom")),
            (
                "boom\nstack backtrace:\n   0: main\n   at x\n",
                Some("boom"),
            ),
        ] {
            assert_eq!(clean_last_line(log).as_deref(), line, "{log:?}");
        }
        assert_eq!(clean_last_line(&"x".repeat(999)).unwrap().len(), LONGEST);
    }
}
