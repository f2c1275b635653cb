//! Files of one crate that import each other in a circle. Such files can only be read and changed together: the item that both need belongs into a
//! file below them.
//!
//! The test reads `use` declarations as text. It follows re-exports to the file that defines an item, and counts neither re-exports nor paths
//! inside of functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// A module and what its file says about others.
struct Module {
    file: PathBuf,
    /// Paths of private `use` declarations, as written.
    imports: Vec<Vec<String>>,
    /// Paths of `pub use` declarations by the name under which they are exported.
    exports: BTreeMap<String, Vec<String>>,
}

/// The modules of one library or program, by their path from its root.
type Tree = BTreeMap<Vec<String>, Module>;

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles: Vec<String> = roots()
        .iter()
        .flat_map(|root| circles(&tree(root)))
        .collect();
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn a_circle_is_found_through_a_re_export() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("circle");
    fs::create_dir_all(folder.join("inner")).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("lib.rs", "mod inner;\nmod outer;\n");
    write("outer.rs", "use crate::inner::{Thing, deep::{self}};\n");
    write("inner/mod.rs", "mod deep;\npub(crate) use deep::Thing;\n");
    write(
        "inner/deep.rs",
        "use super::super::outer::Other as Another;\n",
    );
    let found = circles(&tree(&folder.join("lib.rs")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("deep.rs") && found[0].contains("outer.rs"));
    write("inner/deep.rs", "use std::fmt;\n");
    assert!(circles(&tree(&folder.join("lib.rs"))).is_empty());
}

/// The root files of all libraries and programs of the workspace.
fn roots() -> BTreeSet<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        kind: Vec<String>,
        src_path: PathBuf,
    }
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs this test");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo's metadata");
    metadata
        .packages
        .into_iter()
        .flat_map(|package| package.targets)
        .filter(|target| {
            target
                .kind
                .iter()
                .any(|kind| kind == "lib" || kind == "bin")
        })
        .map(|target| target.src_path)
        .collect()
}

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let folder = root.parent().expect("a file has a folder");
    add(&mut tree, &[], root.to_owned(), folder);
    tree
}

/// Adds a module and those that it declares, which lie in `folder`.
fn add(tree: &mut Tree, path: &[String], file: PathBuf, folder: &Path) {
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut module = Module {
        file,
        imports: Vec::new(),
        exports: BTreeMap::new(),
    };
    let mut children = Vec::new();
    let mut attributes = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes.push_str(line);
            continue;
        }
        let mut declaration = line.to_owned();
        let visibility = ["pub(crate) ", "pub(super) ", "pub ", "pub(in "]
            .iter()
            .find(|prefix| line.starts_with(**prefix));
        let rest = match visibility {
            Some(&"pub(in ") => line.split_once(") ").map_or("", |(_, rest)| rest),
            Some(prefix) => &line[prefix.len()..],
            None => line,
        };
        if let Some(name) = rest
            .strip_prefix("mod ")
            .and_then(|name| name.strip_suffix(';'))
        {
            if !attributes.contains("cfg(test)") && !attributes.contains("cfg(all(test") {
                children.push((name.to_owned(), attributes.clone()));
            }
        } else if rest.starts_with("use ") {
            while !declaration.trim_end().ends_with(';') {
                declaration.push_str(lines.next().unwrap_or(";"));
            }
            let tree_text = &declaration[declaration.find("use ").expect("found above") + 4..];
            let tree_text = tree_text.trim_end().trim_end_matches(';');
            for (path, name) in expand(&[], tree_text) {
                if visibility.is_some() {
                    module.exports.insert(name, path);
                } else if !attributes.contains("cfg(test)") {
                    module.imports.push(path);
                }
            }
        }
        attributes.clear();
    }
    tree.insert(path.to_vec(), module);
    for (name, attributes) in children {
        let file = attributes.split_once("path = \"").map_or_else(
            || {
                let beside = folder.join(format!("{name}.rs"));
                if beside.exists() {
                    beside
                } else {
                    folder.join(&name).join("mod.rs")
                }
            },
            |(_, rest)| folder.join(rest.split('"').next().expect("a quoted path")),
        );
        if file.exists() {
            let child = [path, std::slice::from_ref(&name)].concat();
            add(tree, &child, file, &folder.join(&name));
        }
    }
}

/// The paths of a use tree, each with the name that it brings into scope.
fn expand(prefix: &[String], text: &str) -> Vec<(Vec<String>, String)> {
    let text = text.trim();
    if let Some(open) = text.find('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(
            text[..open]
                .split("::")
                .map(str::trim)
                .filter(|s| !s.is_empty())
                .map(str::to_owned),
        );
        let inner = &text[open + 1..text.rfind('}').expect("braces are balanced")];
        let mut depth = 0;
        return inner
            .split(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ',' && depth == 0
            })
            .filter(|part| !part.trim().is_empty())
            .flat_map(|part| expand(&prefix, part))
            .collect();
    }
    let (path_text, alias) = match text.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim())),
        None => (text, None),
    };
    let mut path = prefix.to_vec();
    path.extend(
        path_text
            .split("::")
            .map(|segment| segment.trim().to_owned()),
    );
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
    vec![(path, name)]
}

/// The module whose file defines what a path names, seen from a module; none if it is of another crate.
fn resolve(tree: &Tree, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
    let mut module = from.to_vec();
    let mut segments = path.iter().peekable();
    match segments.peek()?.as_str() {
        "crate" => {
            module.clear();
            segments.next();
        }
        "self" => {
            segments.next();
        }
        "super" => {}
        first => {
            let child = [&module[..], &[first.to_owned()]].concat();
            if !tree.contains_key(&child) {
                return None;
            }
        }
    }
    while segments.peek().is_some_and(|segment| *segment == "super") {
        module.pop();
        segments.next();
    }
    while let Some(segment) = segments.next() {
        let child = [&module[..], std::slice::from_ref(segment)].concat();
        if tree.contains_key(&child) {
            module = child;
            continue;
        }
        if let Some(exported) = tree[&module].exports.get(segment)
            && depth < 8
        {
            let rest: Vec<String> = exported.iter().chain(segments).cloned().collect();
            return resolve(tree, &module, &rest, depth + 1);
        }
        break;
    }
    Some(module)
}

/// One line per circle.
fn circles(tree: &Tree) -> Vec<String> {
    let arrows: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = tree
        .iter()
        .map(|(path, module)| {
            let targets = module
                .imports
                .iter()
                .filter_map(|import| resolve(tree, path, import, 0));
            (path, targets.filter(|target| target != path).collect())
        })
        .collect();
    let reachable = |start: &Vec<String>| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Vec<String>> = arrows[start].iter().collect();
        while let Some(path) = next.pop() {
            if seen.insert(path) {
                next.extend(&arrows[path]);
            }
        }
        seen
    };
    let reached: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        tree.keys().map(|path| (path, reachable(path))).collect();
    let mut found = BTreeSet::new();
    for (path, targets) in &reached {
        if targets.contains(path) {
            let members: Vec<String> = targets
                .iter()
                .filter(|other| reached[**other].contains(path))
                .map(|other| tree[*other].file.display().to_string())
                .collect();
            found.insert(members.join(", "));
        }
    }
    found.into_iter().collect()
}
