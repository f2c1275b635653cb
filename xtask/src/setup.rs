//! The virtual environment: libtorch (PyTorch's wheel), and what the tests and the demo need of Python. Made once; a stamp
//! tells later runs that nothing has changed, so that they need neither time nor network.

use std::{
    fs, io,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace::{python, root};

/// The versions of Python for which every locked package has a wheel.
const SUPPORTED: [&str; 3] = ["3.11", "3.12", "3.13"];
const CANDIDATES: [&str; 4] = ["python3", "python3.13", "python3.12", "python3.11"];

/// Makes the environment equal the lock file.
pub(crate) fn run() -> anyhow::Result<()> {
    let venv = root().join(".venv");
    let lock_file = root().join("python/requirements.txt");
    let lock =
        fs::read_to_string(&lock_file).with_context(|| format!("read {}", lock_file.display()))?;
    let version = match supported_version(&python().to_string_lossy()) {
        Ok(version) => version,
        Err(_) => create(&venv)?,
    };
    let stamp_file = venv.join("packhorse-setup");
    let stamp = format!("Python {version}\n{lock}");
    let torch = venv.join("torch");
    if torch.join("lib/libtorch_cpu.so").exists()
        && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp)
    {
        return Ok(());
    }
    install(&lock_file, &lock)?;
    let packages = format!("lib/python{version}/site-packages");
    link(&torch, &format!("{packages}/torch"))?;
    ensure!(
        torch.join("lib/libtorch_cpu.so").exists(),
        "the torch wheel has no lib/libtorch_cpu.so: is this Linux?"
    );
    link(&venv.join("libclang"), &format!("{packages}/clang/native"))?;
    fs::write(&stamp_file, stamp).with_context(|| format!("write {}", stamp_file.display()))
}

/// `Ok` with the version if this Python can be used, else why not.
fn supported_version(python: &str) -> Result<String, String> {
    let probe = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])";
    let output = Command::new(python)
        .args(["-c", probe])
        .output()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => "not found".to_owned(),
            _ => e.to_string(),
        })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(message
            .trim()
            .lines()
            .last()
            .unwrap_or("it does not run")
            .to_owned());
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if SUPPORTED.contains(&version.as_str()) {
        Ok(version)
    } else {
        Err(format!("is Python {version}"))
    }
}

fn create(venv: &Path) -> anyhow::Result<String> {
    let mut found = Vec::new();
    for candidate in CANDIDATES {
        match supported_version(candidate) {
            Ok(version) => {
                println!("Making {} with {candidate} ({version})", venv.display());
                let status = Command::new(candidate)
                    .args(["-m", "venv", "--clear"])
                    .arg(venv)
                    .status()?;
                ensure!(
                    status.success(),
                    "{candidate} -m venv {}: {status}",
                    venv.display()
                );
                return Ok(version);
            }
            Err(why) => found.push(format!("{candidate}: {why}")),
        }
    }
    bail!(
        "Python {} with venv and pip is needed (Debian: python3-venv); {}",
        SUPPORTED.join(", "),
        found.join("; ")
    )
}

/// The lock names every package, so pip resolves nothing.
fn install(lock_file: &Path, lock: &str) -> anyhow::Result<()> {
    let packages = lock.lines().filter(|line| line.contains("==")).count();
    println!(
        "Installing {packages} Python packages, PyTorch among them (about 2.5 GB to download the first time)"
    );
    let mut pip = Command::new(python())
        .args([
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-input",
            "--progress-bar",
            "off",
        ])
        .args([
            "--disable-pip-version-check",
            "--root-user-action",
            "ignore",
            "-r",
        ])
        .arg(lock_file)
        .stdout(Stdio::piped())
        .spawn()
        .context("start pip")?;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        .expect("a valid template");
    let bar = ProgressBar::new(packages as u64).with_style(style);
    let output = pip.stdout.take().expect("it is piped");
    for line in BufReader::new(output).lines() {
        let line = line.context("read what pip says")?;
        if line.starts_with("Collecting ") || line.starts_with("Requirement already satisfied: ") {
            bar.inc(1);
        } else if line.starts_with("Installing collected packages") {
            bar.set_message("unpacking");
        } else if let Some(file) = line.trim_start().strip_prefix("Downloading ") {
            bar.set_message(file.to_owned());
            if bar.is_hidden() {
                println!("  {file}");
            }
        }
    }
    let status = pip.wait().context("wait for pip")?;
    bar.finish_and_clear();
    ensure!(
        status.success(),
        "pip could not install {}: {status}",
        lock_file.display()
    );
    Ok(())
}

/// Points `link` to `target`, relative, so that builds find it whatever the version of Python.
fn link(link: &Path, target: &str) -> anyhow::Result<()> {
    match fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(e).context(format!("replace {}", link.display()));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(target, link).with_context(|| format!("make {}", link.display()))
}
