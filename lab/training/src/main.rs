//! The training of policies that learn. Run by `cargo xtask train`.
//!
//! `inss` is trained by SAC-D ([`agent`]) in an environment of drawn problems ([`environment`]). Every so often the actor is
//! scored on problems that it never sees in training ([`evaluation`]), and the state of the training is stored, so that it goes on where it was stopped,
//! with the same result. At the end the weights are written to `crates/placement/src/inss/actor.bin` and the learning curve to `docs/experiments`.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod agent;
mod curve;
mod environment;
mod evaluation;
mod gradient;
mod ground;
mod heads;
mod page;
mod random;
mod replay;
mod training;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Parser;

use crate::{
    environment::Pool,
    evaluation::{Evaluation, OTHERS},
    training::Training,
};

/// Trains a policy, or goes on where the training was stopped.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask train",
    after_help = "\
Examples:
  cargo xtask train inss
  cargo xtask train inss --fresh --seed 2 --updates 1000 --output target/training/trial"
)]
struct Options {
    /// The policy
    #[arg(value_parser = ["inss"])]
    policy: String,
    /// The seed of all randomness
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The updates of the networks
    #[arg(long, default_value_t = 16_000, value_parser = clap::value_parser!(u32).range(1..))]
    updates: u32,
    /// Start anew, and forget a training that was stopped
    #[arg(long)]
    fresh: bool,
    /// Write weights and learning curve into this folder, and not where the policy and the book have them
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("this crate is two folders below the root")?;
    let folder = |committed: &str| {
        let given = options.output.clone();
        given.unwrap_or_else(|| root.join(committed))
    };
    let weights = folder("crates/placement/src/inss").join("actor.bin");
    let curves = folder("docs/experiments");
    let states = root.join("target/training");
    let state = states.join(format!(
        "{}-seed-{}-updates-{}.json",
        options.policy, options.seed, options.updates
    ));
    for folder in [&curves, &states] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let pool = Pool::new()?;
    let evaluation = Evaluation::new(&pool)?;
    let mut training = match fs::read(&state) {
        Ok(bytes) if !options.fresh => {
            serde_json::from_slice(&bytes).with_context(|| state.display().to_string())?
        }
        _ => Training::new(options.seed, options.updates),
    };
    let mut others = Vec::new();
    for name in OTHERS {
        others.push((name, evaluation.of_policy(name)?));
    }
    training.run(&pool, &evaluation, &mut |training: &Training| {
        // A new file in place of the old one, so that there is a whole one at every moment.
        let unfinished = state.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_vec(training)?)?;
        fs::rename(&unfinished, &state).with_context(|| state.display().to_string())
    })?;
    let actor = training.actor().to_bytes();
    fs::write(&weights, actor).with_context(|| weights.display().to_string())?;
    let csv = curves.join("inss-training.csv");
    fs::write(&csv, curve::csv(&training, &others)).with_context(|| csv.display().to_string())?;
    let svg = curves.join("inss-training.svg");
    fs::write(&svg, curve::figure(&training, &others).to_svg())
        .with_context(|| svg.display().to_string())?;
    let text = page::page(root, &training, &others)?;
    let md = curves.join("inss.md");
    fs::write(&md, text).with_context(|| md.display().to_string())?;
    println!("Written to {} and {}", weights.display(), curves.display());
    Ok(())
}
