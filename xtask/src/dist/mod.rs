//! The release archive: programs, their manual pages and completions, units of systemd, licences, and a bill of materials. The same commit gives
//! the same archive from the same programs: names are sorted, and every time is that of the commit.

mod dependencies;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

use self::dependencies::Dependencies;
use crate::{
    release, setup,
    workspace::{root, succeed},
};

/// The platform of releases.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The programs, of which the last is built a second time, for machines without CUDA.
pub(crate) const PROGRAMS: [&str; 5] = [
    "packhorse",
    "packhorse-lab",
    "packhorse-gateway",
    "packhorse-agent",
    "packhorse-worker",
];
/// The worker for NVIDIA GPUs. A worker loads all that it is linked with, so that this one runs only where CUDA's libraries are.
const CUDA_WORKER: &str = "packhorse-worker-cuda";
/// The solver, a C++ library that set-up installs.
const SOLVER: &str = "libhighs.so.1";
/// The libraries of CUDA in the folder of libtorch, without which it is the build for CPUs.
const CUDA_LIBRARIES: [&str; 2] = ["cuda", "nvshmem"];
/// The files that are copied: path in the repository, and in the archive.
const COPIES: [(&str, &str); 6] = [
    ("deploy/README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE", "LICENSE"),
    (
        "deploy/systemd/packhorse-gateway.service",
        "lib/systemd/system/packhorse-gateway.service",
    ),
    (
        "deploy/systemd/packhorse-agent.service",
        "lib/systemd/system/packhorse-agent.service",
    ),
    (
        "deploy/sysusers.d/packhorse.conf",
        "lib/sysusers.d/packhorse.conf",
    ),
];
/// The programs that write one manual page per command, and completions.
const COMMANDS: [&str; 2] = ["packhorse", "packhorse-lab"];
/// The shells, with what stands before and after the name of a program in the place of its completions.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions/", ""),
    ("fish", "share/fish/vendor_completions.d/", ".fish"),
    ("zsh", "share/zsh/site-functions/_", ""),
];
/// The folder of manual pages.
const MANUAL: &str = "share/man/man1";
/// The programs that print their only manual page.
const SERVICES: [&str; 2] = ["packhorse-gateway", "packhorse-agent"];
/// The licences of all dependencies.
pub(crate) const LICENCES: &str = "share/doc/packhorse/THIRD-PARTY-LICENSES.txt";
/// The bill of materials, in `CycloneDX`.
pub(crate) const MATERIALS: &str = "share/doc/packhorse/packhorse.cdx.json";
/// The digests of all other files.
const CHECKSUMS: &str = "SHA256SUMS";

/// The flags of the release archive.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask dist              Builds with optimisation (ten minutes) and writes target/dist/packhorse-VERSION-….tar.gz
  cargo xtask dist --dry-run    Lists what it would contain
  cargo xtask dist --programs target/debug    Takes programs that are built already")]
pub(crate) struct Options {
    /// List the files of the archive, and build nothing
    #[arg(long)]
    dry_run: bool,
    /// Folder of the programs, built already; without it they are built with optimisation
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Folder for the archive and the folder that is packed
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    output: PathBuf,
    /// Write the folder only, for images
    #[arg(long)]
    no_archive: bool,
}

/// Builds what is not handed over, and writes the archive.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let name = format!("packhorse-{}-{TARGET}", env!("CARGO_PKG_VERSION"));
    if options.dry_run {
        print_files(&name);
        return Ok(());
    }
    let output = std::path::absolute(&options.output)?;
    let folder = output.join(&name);
    stage_programs(options.programs.as_deref(), &output, &folder)?;
    stage_texts(&folder)?;
    stage_licences(&folder)?;
    write_checksums(&folder)?;
    println!("{}", folder.display());
    if options.no_archive {
        return Ok(());
    }
    let archive = pack(&folder)?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{}: {:.1} MB", archive.display(), bytes as f64 / 1e6);
    Ok(())
}

fn print_files(name: &str) {
    let programs = PROGRAMS.iter().chain([&CUDA_WORKER]);
    let mut files: Vec<String> = programs.map(|program| format!("bin/{program}")).collect();
    files.push(format!("lib/{SOLVER}"));
    files.extend(COPIES.map(|(_, to)| to.to_owned()));
    files.extend(SERVICES.map(|service| format!("{MANUAL}/{service}.1")));
    for command in COMMANDS {
        let places = COMPLETIONS.map(|(_, before, after)| format!("{before}{command}{after}"));
        files.extend(places);
        files.push(format!("{MANUAL}/{command}.1"));
    }
    files.extend([LICENCES, MATERIALS, CHECKSUMS].map(str::to_owned));
    files.sort();
    for file in files {
        println!("{name}/{file}");
    }
    println!("{name}/{MANUAL}/packhorse-COMMAND.1 for each command");
}

/// Builds the programs, the worker twice, and returns their folder.
fn build(output: &Path) -> anyhow::Result<PathBuf> {
    setup::run()?;
    let programs = output.join("programs");
    fs::create_dir_all(&programs)?;
    println!("Building with optimisation");
    build_with(None)?;
    let built = release::programs();
    for program in PROGRAMS {
        copy(&built.join(program), &programs.join(program))?;
    }
    let libtorch = root().join(".venv/torch");
    if libtorch.join("lib/libtorch_cuda.so").exists() {
        copy(&built.join("packhorse-worker"), &programs.join(CUDA_WORKER))?;
        println!("Building the worker for machines without CUDA");
        let for_cpus = libtorch_for_cpus(&libtorch, &output.join("libtorch-cpu"))?;
        build_with(Some(&for_cpus))?;
        let worker = "packhorse-worker";
        copy(&built.join(worker), &programs.join(worker))?;
    }
    Ok(programs)
}

/// Builds the programs for any machine, with another libtorch than that of the environment if one is given.
fn build_with(libtorch: Option<&Path>) -> anyhow::Result<()> {
    release::build_programs_with(|cargo| {
        cargo
            .arg("--locked")
            // The folders of libtorch and the solver on this machine are nobody else's.
            .env("PACKHORSE_RPATH", "off");
        if let Some(folder) = libtorch {
            cargo.env("LIBTORCH", folder);
        }
    })
}

/// Makes a libtorch without CUDA of links to one with it: what `packhorse setup` installs.
fn libtorch_for_cpus(libtorch: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let libraries = folder.join("lib");
    fs::create_dir_all(&libraries)?;
    let link = |from: &Path, to: &Path| {
        std::os::unix::fs::symlink(from, to).with_context(|| format!("make {}", to.display()))
    };
    let libtorch = fs::canonicalize(libtorch)?;
    link(&libtorch.join("include"), &folder.join("include"))?;
    for library in fs::read_dir(libtorch.join("lib"))? {
        let name = library?.file_name();
        let shown = name.to_string_lossy();
        let is_cuda = CUDA_LIBRARIES.iter().any(|part| shown.contains(part));
        let target = match &*shown {
            "libtorch.so" => "libtorch_cpu.so",
            _ if is_cuda => continue,
            other => other,
        };
        link(&libtorch.join("lib").join(target), &libraries.join(&name))?;
    }
    Ok(folder.to_owned())
}

/// Empties a folder, and writes the programs and the solver into its folders `bin` and `lib`. The programs are those of a folder if it is given;
/// else they are built, in `output`.
pub(crate) fn stage_programs(
    given: Option<&Path>,
    output: &Path,
    folder: &Path,
) -> anyhow::Result<()> {
    let programs = match given {
        Some(folder) => folder.to_owned(),
        None => build(output)?,
    };
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("empty {}", folder.display()))?;
    }
    let bin = folder.join("bin");
    for program in PROGRAMS.iter().chain([&CUDA_WORKER]) {
        let from = programs.join(program);
        // Development builds have one worker.
        if from.exists() || *program != CUDA_WORKER {
            copy(&from, &bin.join(program))?;
            succeed(Command::new("strip").arg(bin.join(program)))?;
        }
    }
    copy(
        &root().join(".venv/highs").join(SOLVER),
        &folder.join("lib").join(SOLVER),
    )
}

/// Writes what people and the system read beside the programs of a folder.
fn stage_texts(folder: &Path) -> anyhow::Result<()> {
    for (from, to) in COPIES {
        copy(&root().join(from), &folder.join(to))?;
    }
    let bin = folder.join("bin");
    // They are written by the programs that are shipped, which also shows that these run.
    let manual = folder.join(MANUAL);
    for command in COMMANDS {
        let program = bin.join(command);
        succeed(Command::new(&program).arg("manual-pages").arg(&manual))?;
        for (shell, before, after) in COMPLETIONS {
            let place = folder.join(format!("{before}{command}{after}"));
            write_output(Command::new(&program).args(["completions", shell]), &place)?;
        }
    }
    for service in SERVICES {
        let page = manual.join(format!("{service}.1"));
        write_output(Command::new(bin.join(service)).arg("--manual-page"), &page)?;
    }
    Ok(())
}

/// Writes [`LICENCES`] and [`MATERIALS`] into a folder.
pub(crate) fn stage_licences(folder: &Path) -> anyhow::Result<()> {
    let dependencies = Dependencies::read(&setup::PROGRAMS, TARGET)?;
    write(&folder.join(LICENCES), &dependencies.licences()?)?;
    write(&folder.join(MATERIALS), &dependencies.bill_of_materials()?)
}

/// Writes the digests of all files, for `sha256sum --check`.
fn write_checksums(folder: &Path) -> anyhow::Result<()> {
    let output = Command::new("sh")
        .current_dir(folder)
        .env("LC_ALL", "C")
        .args([
            "-c",
            "find . -type f | sed 's:^./::' | sort | xargs sha256sum",
        ])
        .output()
        .context("start sh")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(folder.join(CHECKSUMS), output.stdout)?;
    Ok(())
}

/// Packs the folder, and writes the archive's digest beside it.
fn pack(folder: &Path) -> anyhow::Result<PathBuf> {
    let name = folder.file_name().context("the folder has a name")?;
    let parent = folder.parent().context("the folder has a parent")?;
    let archive = parent.join(format!("{}.tar.gz", name.display()));
    succeed(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--mode=u=rwX,go=rX", "--format=gnu"])
            .arg(format!("--mtime=@{}", commit_time()?))
            // Without the name and the time of the file.
            .args(["--use-compress-program", "gzip -n"])
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(parent)
            .arg(name),
    )?;
    let digest = archive.with_extension("gz.sha256");
    let mut sha256sum = Command::new("sha256sum");
    sha256sum
        .current_dir(parent)
        .arg(archive.file_name().context("it has a name")?);
    write_output(&mut sha256sum, &digest)?;
    Ok(archive)
}

/// Returns the time of the commit in seconds since 1970, or `SOURCE_DATE_EPOCH`, which builds outside of a checkout set.
fn commit_time() -> anyhow::Result<u64> {
    if let Some(given) = std::env::var_os("SOURCE_DATE_EPOCH") {
        return given
            .display()
            .to_string()
            .parse()
            .context("SOURCE_DATE_EPOCH");
    }
    let output = Command::new("git")
        .current_dir(root())
        .args(["log", "-1", "--format=%ct"])
        .output()
        .context("start git")?;
    ensure!(
        output.status.success(),
        "outside of a checkout, set SOURCE_DATE_EPOCH"
    );
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().context("the time of the commit")
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    make_parent(file)?;
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// Runs a command with its standard output into a file.
fn write_output(command: &mut Command, file: &Path) -> anyhow::Result<()> {
    make_parent(file)?;
    let output = File::create(file).with_context(|| format!("write {}", file.display()))?;
    succeed(command.stdout(Stdio::from(output)))
}

fn make_parent(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))
}
