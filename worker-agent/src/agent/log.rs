//! What a process said last, to show it as the reason for its end.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// The last line of a log that says something, fit to be shown: without colours, paths and excess.
pub(super) fn last_line(log: &Path) -> Option<String> {
    const TAIL: u64 = 64 << 10;
    let mut file = File::open(log).ok()?;
    let length = fs::metadata(log).ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    presentable(&String::from_utf8_lossy(&tail))
}

fn presentable(text: &str) -> Option<String> {
    const LONGEST: usize = 300;
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

/// A line without terminal escapes: from ESC to the letter that ends the sequence.
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
            assert_eq!(presentable(log).as_deref(), line, "{log:?}");
        }
        assert_eq!(presentable(&"x".repeat(999)).unwrap().len(), 300);
    }
}
