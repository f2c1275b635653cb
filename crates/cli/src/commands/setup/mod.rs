//! `packhorse setup`: downloads libtorch for the workers of a release, which therefore needs neither Python nor a compiler.

mod download;
mod wheels;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use nix::sys::statvfs::statvfs;
use packhorse_service::{LIBTORCH_VERSION, Libtorch, LibtorchBuild};
use packhorse_terminal::{
    context::{self, Context},
    output,
};

use self::{download::Index, wheels::Wheel};

/// The file that a complete installation contains.
const COMPLETE: &str = "complete";
/// The disk that an installation needs, over the size of its wheels: they and what they are unpacked to are there at the same time.
const DISK_FACTOR: f64 = 3.0;

#[derive(clap::Args)]
#[command(after_help = "\
Agents find what is installed here by themselves; another libtorch of the same version is named with their --libtorch.

Examples:
  packhorse setup
  packhorse setup --cuda
  packhorse setup --dry-run
  packhorse setup --dir /opt/libtorch       # then: packhorse serve --libtorch /opt/libtorch")]
pub(crate) struct SetupArgs {
    /// Install the build for NVIDIA GPUs with the libraries of CUDA (2.7 GB to download) instead of that for CPUs (0.5 GB)
    #[arg(long)]
    cuda: bool,
    /// Folder to install into [default: packhorse-libtorch/VERSION in the user's data folder, ~/.local/share]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Python package index, with the JSON of PEP 691
    #[arg(
        long,
        env = "PACKHORSE_INDEX_URL",
        value_name = "URL",
        default_value = "https://pypi.org/simple"
    )]
    index_url: String,
    /// Show what would be downloaded, and download nothing
    #[arg(long)]
    dry_run: bool,
}

impl SetupArgs {
    pub(crate) async fn run(&self, context: &Context) -> anyhow::Result<()> {
        let build = if self.cuda {
            LibtorchBuild::Cuda
        } else {
            LibtorchBuild::Cpu
        };
        let folder = if let Some(folder) = &self.dir {
            folder.clone()
        } else {
            let home = context::data_home().context("name a folder with --dir")?;
            build.folder(&home)
        };
        let wheels: Vec<&Wheel> = wheels::of(build).collect();
        let is_complete = is_complete(&folder, &wheels);
        if self.dry_run {
            return print_plan(context, &folder, &wheels, is_complete);
        }
        if !is_complete {
            ensure!(
                cfg!(target_arch = "x86_64"),
                "there is libtorch for x86-64 only; name that of another machine with the agent's --libtorch"
            );
            let index = Index::new(&self.index_url, &context.authorities())?;
            install(&index, &folder, build, &wheels).await?;
        }
        if context.json() {
            return output::print_json(
                &serde_json::json!({"libtorch": folder, "version": LIBTORCH_VERSION}),
            );
        }
        Ok(output::print_line(format_args!(
            "libtorch {LIBTORCH_VERSION} is in {}",
            folder.display()
        ))?)
    }
}

fn print_plan(
    context: &Context,
    folder: &Path,
    wheels: &[&Wheel],
    is_complete: bool,
) -> anyhow::Result<()> {
    if context.json() {
        let files: Vec<_> = wheels
            .iter()
            .map(|wheel| serde_json::json!({"file": wheel.file, "bytes": wheel.bytes, "sha256": wheel.sha256}))
            .collect();
        return output::print_json(
            &serde_json::json!({"libtorch": folder, "installed": is_complete, "files": files}),
        );
    }
    let state = if is_complete {
        "installed"
    } else {
        "not installed"
    };
    output::print_line(format_args!("{}: {state}", folder.display()))?;
    for wheel in wheels {
        let megabytes = wheel.bytes as f64 / 1e6;
        output::print_line(format_args!("{megabytes:>7.1} MB  {}", wheel.file))?;
    }
    Ok(())
}

/// Downloads and unpacks the wheels. Whatever ends it early, the next run continues, and nothing incomplete counts as installed.
async fn install(
    index: &Index,
    folder: &Path,
    build: LibtorchBuild,
    wheels: &[&Wheel],
) -> anyhow::Result<()> {
    // Readable for all: the agent may run as another user.
    create(folder)?;
    let lock = File::create(folder.join("lock")).with_context(|| cannot_write(folder))?;
    lock.try_lock()
        .with_context(|| format!("{} is being installed already", folder.display()))?;
    require_disk(folder, wheels)?;
    let _ = fs::remove_file(folder.join(COMPLETE));
    let downloads = folder.join("downloads");
    create(&downloads)?;
    for wheel in wheels {
        let file = index.download(wheel, &downloads).await?;
        unpack(&file, folder, build).with_context(|| file.display().to_string())?;
        // The next wheel needs the space.
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    if build == LibtorchBuild::Cpu {
        // Compiled packages (.pt2) name libtorch.so, which in this version only stands for its parts.
        link(&folder.join("torch/lib/libtorch.so"), "libtorch_cpu.so")?;
    }
    fs::remove_dir_all(&downloads)?;
    ensure!(
        Libtorch::find(folder).is_some_and(|libtorch| libtorch.build() == build),
        "the wheels contain no libtorch of this build"
    );
    fs::write(folder.join(COMPLETE), stamp(wheels)).with_context(|| cannot_write(folder))
}

/// Returns true if exactly these wheels are installed.
fn is_complete(folder: &Path, wheels: &[&Wheel]) -> bool {
    fs::read_to_string(folder.join(COMPLETE)).is_ok_and(|text| text == stamp(wheels))
}

/// Returns the text of [`COMPLETE`], in the format of `sha256sum`.
fn stamp(wheels: &[&Wheel]) -> String {
    let lines = wheels
        .iter()
        .map(|wheel| format!("{}  {}\n", wheel.sha256, wheel.file));
    lines.collect()
}

/// Unpacks the libraries that the build loads.
fn unpack(wheel: &Path, folder: &Path, build: LibtorchBuild) -> anyhow::Result<()> {
    let mut archive = unzip::ZipArchive::new(File::open(wheel)?)?;
    for index in 0..archive.len() {
        let mut member = archive.by_index(index)?;
        let Some(path) = member.enclosed_name() else {
            bail!("{:?} lies outside of the folder", member.name());
        };
        if !path
            .to_str()
            .is_some_and(|path| wheels::is_loaded(build, path))
        {
            continue;
        }
        let target = folder.join(&path);
        create(target.parent().context("it is in a folder")?)?;
        let mut file = File::create(&target).with_context(|| cannot_write(&target))?;
        io::copy(&mut member, &mut file).with_context(|| cannot_write(&target))?;
    }
    Ok(())
}

fn create(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn link(link: &Path, target: &str) -> anyhow::Result<()> {
    match fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    symlink(target, link).with_context(|| format!("cannot make {}", link.display()))
}

/// Fails where the file system has too little space, before the first byte is downloaded.
fn require_disk(folder: &Path, wheels: &[&Wheel]) -> anyhow::Result<()> {
    let disk = statvfs(folder)?;
    let free = disk.blocks_available() as f64 * disk.fragment_size() as f64;
    let bytes: u64 = wheels.iter().map(|wheel| wheel.bytes).sum();
    let needed = bytes as f64 * DISK_FACTOR;
    ensure!(
        free >= needed,
        "{} has {:.1} GB free, and libtorch needs {:.1} GB: name another folder with --dir",
        folder.display(),
        free / 1e9,
        needed / 1e9
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_finished_counts_as_installed() {
        let folder = tempfile::tempdir().unwrap();
        let cpu: Vec<&Wheel> = wheels::of(LibtorchBuild::Cpu).collect();
        let cuda: Vec<&Wheel> = wheels::of(LibtorchBuild::Cuda).collect();
        assert!(cpu.len() < cuda.len());
        assert!(!is_complete(folder.path(), &cpu));
        fs::write(folder.path().join(COMPLETE), stamp(&cpu)).unwrap();
        assert!(is_complete(folder.path(), &cpu));
        assert!(!is_complete(folder.path(), &cuda));
    }
}
