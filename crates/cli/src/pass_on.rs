//! Commands that another program of Packhorse carries out.

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

/// Becomes another program with the arguments of this process. Returns only if it cannot.
pub(crate) fn pass_on_to(program_name: &str) -> anyhow::Result<()> {
    let beside = env::current_exe().ok();
    let beside = beside.as_deref().and_then(Path::parent);
    let beside = beside.map(|folder| folder.join(program_name));
    let program = beside
        .filter(|program| program.exists())
        .unwrap_or_else(|| PathBuf::from(program_name));
    let error = Command::new(&program).args(env::args_os().skip(1)).exec();
    if error.kind() == io::ErrorKind::NotFound {
        bail!(
            "{program_name} does this, and is neither beside this program nor on the PATH; release archives contain it, and in a checkout \
             `cargo build -p {program_name}` builds it"
        );
    }
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
