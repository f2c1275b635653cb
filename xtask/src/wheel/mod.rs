//! The Python package: a wheel with the programs of a release, whose workers find libtorch in the PyTorch that is installed beside it. The same
//! programs give the same wheel.

mod archive;
mod glibc;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};

use self::archive::Member;
use crate::{
    dist::{self, LICENCES, MATERIALS, PROGRAMS, TARGET},
    setup,
    workspace::root,
};

/// The name of the package for Python's programs and for pip.
const PACKAGE: &str = "packhorse";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The oldest Python for which PyTorch has wheels.
const PYTHON: &str = ">=3.10";
/// The module with versions, which is written here, for those of `python/packhorse`.
const VERSIONS: &str = "_versions.py";

/// The place of libraries that workers are linked with, and the one that they have in the package: PyTorch beside it. A worker outside of a package does not look
/// there, where it could be anybody's folder.
const LINKED_PLACE: &[u8; 23] = b"$ORIGIN/../lib/././././";
const PYTORCH_PLACE: &[u8; 23] = b"$ORIGIN/../../torch/lib";

/// The flags of the wheel.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask wheel              Builds with optimisation and writes target/wheel/packhorse-VERSION-py3-none-….whl
  cargo xtask wheel --programs target/debug    Takes programs that are built already")]
pub(crate) struct Options {
    /// Folder of the programs, built already; without it they are built with optimisation
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Folder for the wheel and the programs that it contains
    #[arg(
        long,
        alias = "out",
        value_name = "DIR",
        default_value = "target/wheel"
    )]
    output: PathBuf,
}

/// Builds what is not handed over, and writes the wheel.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let output = std::path::absolute(&options.output)?;
    let staged = output.join("staged");
    dist::stage_programs(options.programs.as_deref(), &output, &staged)?;
    dist::stage_licences(&staged)?;
    let tag = format!("py3-none-{}", platform(&staged)?);
    let information = format!("{PACKAGE}-{VERSION}.dist-info");
    let mut members = programs(&staged)?;
    members.extend(modules()?);
    members.extend(description(&staged, &information, &tag)?);
    let wheel = output.join(format!("{PACKAGE}-{VERSION}-{tag}.whl"));
    archive::write(&wheel, members, &format!("{information}/RECORD"))?;
    let bytes = fs::metadata(&wheel)?.len();
    println!("{}: {:.1} MB", wheel.display(), bytes as f64 / 1e6);
    Ok(())
}

/// Returns the tag of the systems on which the programs run: those with the newest glibc that one of them needs, or a newer one.
fn platform(staged: &Path) -> anyhow::Result<String> {
    let mut newest = (0, 0);
    for (file, _) in files_in(staged, "bin")?
        .iter()
        .chain(&files_in(staged, "lib")?)
    {
        newest = newest.max(glibc::needed(file)?);
    }
    let (major, minor) = newest;
    let machine = TARGET.split('-').next().unwrap_or(TARGET);
    Ok(format!("manylinux_{major}_{minor}_{machine}"))
}

/// Returns the programs and the solver, which find each other as in a release archive.
fn programs(staged: &Path) -> anyhow::Result<Vec<Member>> {
    let mut members = Vec::new();
    for (folder, is_program) in [("bin", true), ("lib", false)] {
        for (file, name) in files_in(staged, folder)? {
            let mut bytes = read(&file)?;
            if name.starts_with("packhorse-worker") {
                look_for_pytorch(&mut bytes).with_context(|| file.display().to_string())?;
            }
            members.push(Member {
                path: format!("{PACKAGE}/{folder}/{name}"),
                bytes,
                is_program,
            });
        }
    }
    Ok(members)
}

/// Has a worker look for libtorch in the PyTorch that is installed beside the package.
fn look_for_pytorch(worker: &mut [u8]) -> anyhow::Result<()> {
    let places = worker.windows(LINKED_PLACE.len()).enumerate();
    let places = places.filter(|(_, bytes)| bytes == LINKED_PLACE);
    let found: Vec<usize> = places.map(|(place, _)| place).collect();
    let [place] = found[..] else {
        bail!(
            "expected one run path {}, found {}: build the worker again",
            String::from_utf8_lossy(LINKED_PLACE),
            found.len()
        );
    };
    worker[place..][..PYTORCH_PLACE.len()].copy_from_slice(PYTORCH_PLACE);
    Ok(())
}

/// Returns the modules of Python: those of the repository, and one with versions.
fn modules() -> anyhow::Result<Vec<Member>> {
    let mut members = Vec::new();
    for (file, name) in files_in(&root().join("python"), PACKAGE)? {
        if file.extension().is_some_and(|extension| extension == "py") {
            members.push(Member::file(format!("{PACKAGE}/{name}"), read(&file)?));
        }
    }
    let torch = torch_version()?;
    let text = format!(
        "\"\"\"The versions of this package, and of the PyTorch that its workers are linked with.\"\"\"\n\n\
         PACKHORSE = \"{VERSION}\"\nTORCH = \"{torch}\"\n"
    );
    members.push(Member::file(format!("{PACKAGE}/{VERSIONS}"), text));
    Ok(members)
}

/// Returns what pip reads, and the licences and the bill of materials.
fn description(staged: &Path, information: &str, tag: &str) -> anyhow::Result<Vec<Member>> {
    let file = |name: &str, bytes: Vec<u8>| Member::file(format!("{information}/{name}"), bytes);
    let metadata = format!(
        "Metadata-Version: 2.4\nName: {PACKAGE}\nVersion: {VERSION}\n\
         Summary: An inference gateway for people who have more models than GPUs\n\
         License-Expression: {}\nLicense-File: LICENSE\nLicense-File: {}\n\
         Requires-Python: {PYTHON}\nRequires-Dist: torch=={}.*\n",
        env!("CARGO_PKG_LICENSE"),
        name_of(LICENCES),
        torch_version()?
    );
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: packhorse-xtask {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    let scripts = PROGRAMS.map(|program| {
        // `packhorse` is a function of that name; `packhorse-agent` is `agent`.
        let function = program.strip_prefix("packhorse-").unwrap_or(program);
        format!("{program} = {PACKAGE}._launch:{function}\n")
    });
    let scripts = format!("[console_scripts]\n{}", scripts.concat());
    Ok(vec![
        file("METADATA", metadata.into()),
        file("WHEEL", wheel.into()),
        file("entry_points.txt", scripts.into()),
        file("licenses/LICENSE", read(&root().join("LICENSE"))?),
        file(
            &format!("licenses/{}", name_of(LICENCES)),
            read(&staged.join(LICENCES))?,
        ),
        file(
            &format!("sboms/{}", name_of(MATERIALS)),
            read(&staged.join(MATERIALS))?,
        ),
    ])
}

/// Returns the first two numbers of the version of PyTorch that the workers are linked with; the third changes no interface.
fn torch_version() -> anyhow::Result<String> {
    let version = setup::locked_version("torch")?;
    let mut numbers = version.split('.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        bail!("{version} is no version of PyTorch");
    };
    Ok(format!("{major}.{minor}"))
}

/// Returns the files in a folder of another one, with their names, by which they are sorted.
fn files_in(parent: &Path, folder: &str) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let folder = parent.join(folder);
    let context = || format!("read {}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_file() {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.context("the name of a file is text")?.to_owned();
            files.push((path, name));
        }
    }
    ensure!(!files.is_empty(), "{} has no files", folder.display());
    files.sort();
    Ok(files)
}

/// Returns the last part of a path of the release archive.
fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("read {}", file.display()))
}
