//! Prometheus and `promtool`, which check `deploy`: Debian's package, unpacked beside the built files and not installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::workspace::root;

/// Unpacks the package where it is not there yet; otherwise returns the reason why there is none.
pub(crate) fn install() -> Result<(), String> {
    let tools = root().join("target/tools");
    let folder = tools.join("prometheus");
    if folder.join("usr/bin/promtool").is_file() {
        return Ok(());
    }
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    let downloads = tools.join("prometheus-download");
    fs::create_dir_all(&downloads).map_err(error)?;
    // Without a list of packages there is nothing to download.
    if run("apt-get", &["download", "-qq", "prometheus"], &downloads).is_err() {
        run("apt-get", &["update", "-qq"], &downloads)?;
        run("apt-get", &["download", "-qq", "prometheus"], &downloads)?;
    }
    let package = package_in(&downloads).ok_or("apt-get has downloaded no package")?;
    let (from, to) = (package.to_string_lossy(), folder.to_string_lossy());
    run("dpkg", &["-x", &from, &to], &downloads)?;
    fs::remove_dir_all(&downloads).map_err(error)
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!(
            "there is no Prometheus, and `{program} {}` failed",
            arguments.join(" ")
        )),
    }
}

fn package_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "deb"))
}
