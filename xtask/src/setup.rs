//! The virtual environment: libtorch (PyTorch's wheel), the solver `HiGHS`, and the Python packages of the tests and the demo. It is
//! made once; a stamp tells later runs that nothing has changed, so that they need neither time nor network.

use std::{
    fs, io,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace::{cargo_build, python, root};

/// The versions of Python for which every locked package has a wheel.
const SUPPORTED: [&str; 3] = ["3.11", "3.12", "3.13"];
const CANDIDATES: [&str; 4] = ["python3", "python3.13", "python3.12", "python3.11"];
/// The packages that gateway and command line are built with: the library and the headers of `HiGHS`, and the tools that find them.
const SOLVER: [&str; 4] = ["highsbox", "highspy", "libclang", "pkgconf"];

/// The disk that the installation needs: 2.5 GB of downloads and 5.7 GB of unpacked packages.
const DISK_BYTES: u64 = 9_000_000_000;

/// The packages that are compiled while PyTorch is unpacked.
pub(crate) const WITHOUT_TORCH: [&str; 3] = ["packhorse-gateway", "packhorse-cli", "packhorse-lab"];
/// The packages of gateway, command line, laboratory, agent and worker.
pub(crate) const PROGRAMS: [&str; 4] = [
    "packhorse-gateway",
    "packhorse-cli",
    "packhorse-lab",
    "packhorse-worker-agent",
];

/// Makes the environment equal the lock file.
pub(crate) fn run() -> anyhow::Result<()> {
    match Environment::find()? {
        Some(environment) => environment.install_solver()?.install_rest(),
        None => Ok(()),
    }
}

/// Makes the environment equal the lock file and builds gateway, agent, worker and command line. While PyTorch is downloaded and
/// unpacked, the programs that do not need it are compiled.
pub(crate) fn run_and_build() -> anyhow::Result<()> {
    if let Some(environment) = Environment::find()? {
        let environment = environment.install_solver()?;
        println!("Building what needs no PyTorch meanwhile");
        let mut build = cargo_build(&WITHOUT_TORCH).spawn().context("start cargo")?;
        let installed = environment.install_rest();
        let status = build.wait().context("wait for cargo")?;
        installed?;
        ensure!(status.success(), "cargo build: {status}");
    }
    println!("Building");
    let status = cargo_build(&PROGRAMS).status().context("start cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(())
}

/// A virtual environment that differs from the lock file.
struct Environment {
    folder: PathBuf,
    /// The version of its Python, such as 3.11.
    version: String,
    lock: String,
}

impl Environment {
    /// Returns the environment, created if there is none, or `None` if it equals the lock file already.
    fn find() -> anyhow::Result<Option<Self>> {
        let folder = root().join(".venv");
        let lock = read_lock()?;
        let version = supported_version(&python().to_string_lossy()).or_else(|_| {
            require_disk(root(), DISK_BYTES)?;
            create(&folder)
        })?;
        let environment = Self {
            folder,
            version,
            lock,
        };
        let is_current = environment
            .folder
            .join("torch/lib/libtorch_cpu.so")
            .exists()
            && fs::read_to_string(environment.stamp_file())
                .is_ok_and(|stamp| stamp == environment.stamp());
        Ok((!is_current).then_some(environment))
    }

    /// Installs the packages of [`SOLVER`] and lays `HiGHS` out as compilers expect it.
    fn install_solver(self) -> anyhow::Result<Self> {
        let chosen: Vec<&str> = self
            .lock
            .lines()
            .filter(|line| {
                let name = line.split("==").next();
                name.is_some_and(|name| SOLVER.contains(&name))
            })
            .collect();
        ensure!(
            chosen.len() == SOLVER.len(),
            "{} must lock {}",
            lock_file().display(),
            SOLVER.join(", ")
        );
        install(&chosen, chosen.len())?;
        let packages = self.packages();
        link(
            &self.folder.join("libclang"),
            &format!("{packages}/clang/native"),
        )?;
        let highs = self.folder.join("highs");
        fs::create_dir_all(&highs).with_context(|| format!("make {}", highs.display()))?;
        let headers = "highsbox/highs_dist/include/highs";
        link(&highs.join("include"), &format!("../{packages}/{headers}"))?;
        // The linker looks for the first name, the programs for the second.
        for name in ["libhighs.so", "libhighs.so.1"] {
            link(
                &highs.join(name),
                &format!("../{packages}/highspy/libhighs.so.1"),
            )?;
        }
        link(
            &highs.join("pkg-config"),
            &format!("../{packages}/pkgconf/.bin/pkgconf"),
        )?;
        let version = version_in(&self.lock, "highspy")?;
        // The folder of the file itself, so that the checkout can be moved.
        let here = "${pcfiledir}";
        let description = format!(
            "Name: HiGHS\nDescription: linear optimisation\nVersion: {version}\nLibs: -L{here} -lhighs\nCflags: -I{here}/include\n"
        );
        let file = highs.join("highs.pc");
        fs::write(&file, description).with_context(|| format!("write {}", file.display()))?;
        Ok(self)
    }

    /// Installs every other package and records that the environment equals the lock file.
    fn install_rest(&self) -> anyhow::Result<()> {
        let count = self.lock.lines().filter(|line| line.contains("==")).count();
        println!(
            "Installing {count} Python packages, PyTorch among them (about 2.5 GB to download the first time)"
        );
        let lock_file = lock_file().display().to_string();
        install(&["-r", &lock_file], count)?;
        let torch = self.folder.join("torch");
        link(&torch, &format!("{}/torch", self.packages()))?;
        ensure!(
            torch.join("lib/libtorch_cpu.so").exists(),
            "the torch wheel has no lib/libtorch_cpu.so: is this Linux?"
        );
        let stamp_file = self.stamp_file();
        fs::write(&stamp_file, self.stamp())
            .with_context(|| format!("write {}", stamp_file.display()))
    }

    /// The folder of installed packages, relative to the environment's.
    fn packages(&self) -> String {
        format!("lib/python{}/site-packages", self.version)
    }

    fn stamp_file(&self) -> PathBuf {
        self.folder.join("packhorse-setup")
    }

    fn stamp(&self) -> String {
        format!("Python {}\n{}", self.version, self.lock)
    }
}

/// Returns the version of a package that the environment has, or will have.
pub(crate) fn locked_version(package: &str) -> anyhow::Result<String> {
    version_in(&read_lock()?, package).map(str::to_owned)
}

fn version_in<'a>(lock: &'a str, package: &str) -> anyhow::Result<&'a str> {
    let version = |line: &'a str| line.strip_prefix(package)?.strip_prefix("==");
    let found = lock.lines().find_map(version);
    found.with_context(|| format!("{} does not lock {package}", lock_file().display()))
}

fn read_lock() -> anyhow::Result<String> {
    let file = lock_file();
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}

fn lock_file() -> PathBuf {
    root().join("python/requirements.txt")
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

/// Fails where the file system of `folder` has less than `bytes` free.
fn require_disk(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let disk = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("read the free space of {}", folder.display()))?;
    let free = disk.blocks_available() * disk.fragment_size();
    ensure!(
        free >= bytes,
        "{} has {:.1} GB free and the environment needs {:.1} GB: free some disk and start again",
        folder.display(),
        free as f64 / 1e9,
        bytes as f64 / 1e9
    );
    Ok(())
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

/// Has pip install these packages, `count` in all. The lock file names every package, so pip resolves nothing.
fn install(packages: &[&str], count: usize) -> anyhow::Result<()> {
    let mut pip = Command::new(python())
        .args(["-m", "pip", "install", "--no-deps", "--no-input"])
        .args(["--progress-bar", "off", "--disable-pip-version-check"])
        .args(["--root-user-action", "ignore"])
        .args(packages)
        .stdout(Stdio::piped())
        .spawn()
        .context("start pip")?;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        .expect("a valid template");
    let bar = ProgressBar::new(count as u64).with_style(style);
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
        packages.join(" ")
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
