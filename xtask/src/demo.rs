//! The demo: two real models, registered as anybody would, and what they answer.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

use crate::{
    local::{AgentFlags, Interrupt, LocalCluster, print_addresses},
    processes::stop_remains,
    setup,
    workspace::{python, root},
};

/// The flags of the demo.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder of models, store and logs; a second run finds them there
    #[arg(long, default_value = ".packhorse/demo")]
    state_dir: PathBuf,
    /// The inference listener's port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    http_port: u16,
    /// The admin listener's port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8081)]
    admin_port: u16,
    /// Forget the models of earlier runs and begin anew
    #[arg(long)]
    fresh: bool,
    /// Use the programs as they are built
    #[arg(long)]
    no_build: bool,
}

/// A folder of `examples/`: its model, and the client that shows it.
struct Example {
    folder: &'static str,
    client: &'static str,
}

const EXAMPLES: [Example; 2] = [
    Example {
        folder: "efficientnet-lite0",
        client: "classify.py",
    },
    Example {
        folder: "minilm",
        client: "embed.py",
    },
];

/// Sets up, builds, serves and shows, until Ctrl-C or SIGTERM.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.no_build {
        setup::run()?;
    } else {
        setup::run_and_build()?;
    }
    let interrupt = Interrupt::listen()?;
    let state_dir = state_dir(options)?;
    // Held while the demo runs: two of them would share a store.
    let lock = File::create(state_dir.join("lock")).context("create the lock file")?;
    ensure!(
        lock.try_lock().is_ok(),
        "another demo runs with {}",
        state_dir.display()
    );
    stop_remains(&state_dir);
    if options.fresh {
        forget(&state_dir)?;
    }
    match serve(options, &state_dir, &interrupt) {
        Err(_) if interrupt.is_raised() => {
            println!("\nStopped.");
            Ok(())
        }
        outcome => outcome,
    }
}

/// The state folder, made and absolute.
fn state_dir(options: &Options) -> anyhow::Result<PathBuf> {
    let dir = root().join(&options.state_dir);
    fs::create_dir_all(dir.join("models")).with_context(|| format!("create {}", dir.display()))?;
    dir.canonicalize()
        .with_context(|| format!("find {}", dir.display()))
}

fn forget(state_dir: &Path) -> anyhow::Result<()> {
    for part in ["gateway", "local"].map(|part| state_dir.join(part)) {
        if part.exists() {
            fs::remove_dir_all(&part).with_context(|| format!("remove {}", part.display()))?;
        }
    }
    Ok(())
}

fn serve(options: &Options, state_dir: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let artifacts = EXAMPLES
        .iter()
        .map(|example| export(example, state_dir, interrupt))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut cluster = LocalCluster::start(
        state_dir,
        [options.http_port, options.admin_port],
        &[AgentFlags::new("local", "cpu")],
        interrupt,
    )?;
    for (Example { folder, .. }, artifact) in EXAMPLES.iter().zip(&artifacts) {
        let registration = Path::new("examples").join(folder).join("model.json");
        cluster.register(folder, &registration, artifact, Stdio::inherit())?;
        cluster.wait_until_ready(folder)?;
    }
    for Example { folder, client } in &EXAMPLES {
        println!();
        let script = Path::new("examples").join(folder).join(client);
        let url = cluster.endpoints.inference.to_string();
        interrupt.run(Command::new(python()).arg(script).args(["--url", &url]))?;
    }
    print_addresses(&cluster.endpoints, state_dir);
    cluster.run_until_interrupted()
}

/// The model as a TorchScript file, written again when what writes it has changed.
fn export(example: &Example, state_dir: &Path, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let script = root()
        .join("examples")
        .join(example.folder)
        .join("export.py");
    let model = state_dir
        .join("models")
        .join(format!("{}.pt", example.folder));
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    if modified(&model).is_ok_and(|time| modified(&script).is_ok_and(|script| script < time)) {
        return Ok(model);
    }
    println!("Exporting {} to TorchScript", example.folder);
    let partial = model.with_extension("partial");
    interrupt.run(
        Command::new(python())
            .arg("-Wignore")
            .arg(&script)
            .arg(&partial),
    )?;
    fs::rename(&partial, &model).with_context(|| format!("write {}", model.display()))?;
    Ok(model)
}
