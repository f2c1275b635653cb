//! The comparison of a run's files with the committed ones.

use std::{fs, path::Path};

use anyhow::Context as _;

use crate::page::PLANNING_TIMES;

/// Returns the names of the files in `folder` that differ from the file of the same name in `committed`, or that are missing there, in
/// alphabetical order. Planning times in Markdown files may differ.
pub(crate) fn differing_files(folder: &Path, committed: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let read = |folder: &Path| fs::read_to_string(folder.join(&name));
        let written = read(folder).with_context(|| format!("read {name}"))?;
        let is_same = read(committed).is_ok_and(|text| {
            if Path::new(&name).extension() == Some("md".as_ref()) {
                without_planning_times(&text) == without_planning_times(&written)
            } else {
                text == written
            }
        });
        if !is_same {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the lines of a page, with the table of planning times reduced to its first column.
fn without_planning_times(page: &str) -> Vec<&str> {
    let mut in_section = false;
    page.lines()
        .map(|line| {
            if let Some(heading) = line.strip_prefix("## ") {
                in_section = heading == PLANNING_TIMES;
            }
            match line.strip_prefix("| ") {
                Some(row) if in_section => row.split(" |").next().unwrap_or_default(),
                _ => line,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_planning_times_may_differ() {
        let page = |share: &str, planner: &str, time: &str| {
            format!(
                "| goodput | {share} |\n\n## {PLANNING_TIMES}\n\n| | median ms |\n|---|---:|\n| {planner} | {time} |\n\nnot run\n"
            )
        };
        let lines = |share, planner, time| {
            let page = page(share, planner, time);
            without_planning_times(&page)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<String>>()
        };
        let expected = lines("99.0", "goodput", "1.0");
        assert_eq!(lines("99.0", "goodput", "2.5"), expected);
        assert_ne!(lines("98.9", "goodput", "1.0"), expected);
        assert_ne!(lines("99.0", "usher", "1.0"), expected);
    }
}
