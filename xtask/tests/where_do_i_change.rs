//! The table "Where do I change …" of ARCHITECTURE.md names files and items that exist.

use std::{fs, path::Path};

#[test]
fn every_file_and_item_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, section) = text.split_once("## Where do I change").unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 12, "only {} rows", rows.len());
    for row in rows {
        let [_, path, item] = row[..] else {
            panic!("{row:?} has no three columns");
        };
        let path = path.trim_matches('`');
        let file = fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let item = item.trim_matches('`');
        assert!(file.contains(item), "{path} contains no {item:?}");
    }
}
