//! The tables of docs/faults.md have every fault, and name tests that exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The number of faults that were found.
const FAULTS: u32 = 73;

#[test]
fn every_fault_is_open_or_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "number" {
            continue;
        }
        let number: u32 = cells[0].parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(seen.insert(number), "{number} is there twice");
        let tests = match cells[..] {
            [_, _, tests, _, _] => tests,
            // An open fault, with what is missing.
            [_, _, _] => continue,
            _ => panic!("{line} has neither five columns nor three"),
        };
        let named = named_tests(tests);
        assert!(!named.is_empty(), "fault {number} has no test");
        for (name, place) in named {
            let definitions = [format!("fn {name}("), format!("def {name}(")];
            let sources = sources(&root.join(folder(place)));
            let exists = sources.iter().any(|source| {
                let text = fs::read_to_string(source).unwrap();
                definitions
                    .iter()
                    .any(|definition| text.contains(definition))
            });
            assert!(exists, "{place} has no test {name} (fault {number})");
        }
    }
    assert_eq!(seen, (1..=FAULTS).collect());
}

/// Returns the tests of a cell, "`name` (place), `name` (place)".
fn named_tests(cell: &str) -> Vec<(&str, &str)> {
    let split = |entry: &str| entry.trim().is_empty();
    cell.split("), ")
        .filter(|entry| !split(entry))
        .map(|entry| {
            let entry = entry.trim().trim_end_matches(')');
            let (name, place) = entry
                .split_once("` (")
                .unwrap_or_else(|| panic!("{entry} is not `name` (place)"));
            (name.trim_start_matches('`'), place)
        })
        .collect()
}

/// Returns the folder of a crate, or of the system tests.
fn folder(place: &str) -> PathBuf {
    match place.strip_prefix("packhorse-") {
        Some(name @ ("gateway" | "worker-agent")) => name.into(),
        Some(name) => Path::new("crates").join(name),
        None => place.into(),
    }
}

/// Returns all Rust and Python files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry
            .expect("a folder of the repository can be read")
            .path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path
            .extension()
            .is_some_and(|end| end == "rs" || end == "py")
        {
            found.push(path);
        }
    }
    found
}
