//! The folders of a model's versions in a model repository: each has the version's number as its name.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use packhorse_terminal::files::folders;

/// The names of a program in the folder of a version.
pub(super) const PROGRAMS: [&str; 2] = ["model.pt", "model.pt2"];

/// Returns the folders of a model's versions with their numbers, ascending.
///
/// # Errors
/// If there is none, or the model's folder cannot be read.
pub(super) fn version_folders(model: &Path) -> anyhow::Result<Vec<(u32, PathBuf)>> {
    let folders = folders(model).context("cannot read the folder")?;
    let numbered = folders.into_iter().filter_map(|folder| {
        let name = folder.file_name().and_then(OsStr::to_str)?;
        Some((version_number(name)?, folder))
    });
    let mut numbered: Vec<(u32, PathBuf)> = numbered.collect();
    ensure!(
        !numbered.is_empty(),
        "there is no version: put the model's file into {}",
        model.join("1").join(PROGRAMS[0]).display()
    );
    numbered.sort();
    Ok(numbered)
}

/// Returns the number of the version whose folder has this name, as it is written: `01` and `+1` are no versions.
fn version_number(name: &str) -> Option<u32> {
    let number: u32 = name.parse().ok()?;
    (number > 0 && number.to_string() == name).then_some(number)
}
