//! A cluster of simulated devices on this machine: the real gateway, agents, workers and sockets.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::{
    local::{AgentFlags, Interrupt, LocalCluster, print_addresses},
    processes::stop_remains,
    setup,
    workspace::root,
};

/// The kind of the simulated devices: that of the profiles.
const KIND: &str = "V100-SXM2-16GB";
const PROFILES: &str = "profiles/v100-thesis.csv";
/// The elements of a request's input, 4 bytes each.
const ELEMENTS: u32 = 1024;
/// The latency objective without a scale, in milliseconds.
const SLO_MS: f64 = 200.0;
/// The largest batch size.
const MAX_BATCH_SIZE: u32 = 32;

/// The flags of the cluster.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of nodes, each with an agent
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Number of simulated GPUs of each node
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// Factor of all batch times and SLOs: what two cores can drive is limited
    #[arg(long, default_value_t = 10.0)]
    latency_scale: f64,
    /// Models to register, separated by commas [default: all of the thesis]
    #[arg(long, value_delimiter = ',')]
    models: Vec<String>,
    /// Rate of each model, in requests per second
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    /// Send the models' rates for this time, in seconds, and show how they are served
    #[arg(long, value_name = "SECONDS")]
    load: Option<u32>,
    /// End after the load
    #[arg(long, requires = "load")]
    once: bool,
    /// Folder of store, models and logs; it is made anew
    #[arg(long, default_value = ".packhorse/cluster")]
    state_dir: PathBuf,
    /// The inference listener's port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    http_port: u16,
    /// The admin listener's port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8081)]
    admin_port: u16,
}

/// Starts the cluster, registers the models, sends them requests if asked to, and stops everything at Ctrl-C or SIGTERM.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    setup::run_and_build()?;
    let interrupt = Interrupt::listen()?;
    let state_dir = root().join(&options.state_dir);
    fs::create_dir_all(&state_dir).with_context(|| format!("make {}", state_dir.display()))?;
    let state_dir = state_dir.canonicalize()?;
    stop_remains(&state_dir);
    fs::remove_dir_all(&state_dir).with_context(|| format!("empty {}", state_dir.display()))?;
    fs::create_dir_all(&state_dir)?;
    match serve(options, &state_dir, &interrupt) {
        Err(_) if interrupt.is_raised() => {
            println!("\nStopped.");
            Ok(())
        }
        outcome => outcome,
    }
}

fn serve(options: &Options, state_dir: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let csv = fs::read_to_string(root().join(PROFILES)).context(PROFILES)?;
    let profiles = state_dir.join("profiles.csv");
    fs::write(&profiles, scaled(&csv, options.latency_scale)?)?;
    let mut models = models(&csv);
    for name in &options.models {
        ensure!(
            models.contains(name),
            "--models: {name} has no profile in {PROFILES}"
        );
    }
    models.retain(|name| options.models.is_empty() || options.models.contains(name));
    let agents: Vec<AgentFlags> = (0..options.nodes)
        .map(|number| {
            let node = format!("node-{number}");
            let devices = format!("simulated:{KIND}:{}", options.gpus);
            AgentFlags::new(&node, &devices).with("--profiles", &profiles.to_string_lossy())
        })
        .collect();
    let ports = [options.http_port, options.admin_port];
    let mut cluster = LocalCluster::start(state_dir, ports, &agents, interrupt)?;
    let artifact = state_dir.join("model.pt");
    fs::write(&artifact, "A simulated device reads no model.")?;
    println!("Registering {} models", models.len());
    for name in &models {
        let tensor = |name: &str, size: u32| {
            let shape = [-1, i64::from(size)];
            json!([{"name": name, "datatype": "FP32", "shape": shape}])
        };
        let registration = json!({
            "name": name, "version": 1, "max_batch_size": MAX_BATCH_SIZE,
            "slo_ms": SLO_MS * options.latency_scale, "rate_rps": options.rate,
            "inputs": tensor("x", ELEMENTS), "outputs": tensor("y", 1),
        });
        let file = state_dir.join(format!("{name}.json"));
        fs::write(&file, registration.to_string())?;
        cluster.register(name, &file, &artifact, Stdio::null())?;
    }
    for name in &models {
        cluster.wait_until_ready(name)?;
    }
    print_addresses(&cluster.endpoints, state_dir);
    if let Some(seconds) = options.load {
        let scenario = state_dir.join("load.toml");
        fs::write(&scenario, load(options, &models, seconds))?;
        println!("\nSending the models' rates for {seconds} s");
        let mut bench = cluster.command()?;
        bench.args(["bench", "--scenario"]).arg(&scenario);
        interrupt.run(&mut bench)?;
    }
    if options.once {
        return Ok(());
    }
    cluster.run_until_interrupted()
}

/// Returns the profiles with all latencies multiplied.
fn scaled(csv: &str, scale: f64) -> anyhow::Result<String> {
    let mut lines = csv.lines();
    let header = lines.next().context("the profiles have a header")?;
    let latencies: Vec<bool> = header
        .split(',')
        .map(|column| column.starts_with("latency"))
        .collect();
    let mut text = format!("{header}\n");
    for line in lines {
        let mut cells = Vec::new();
        for (cell, is_latency) in line.split(',').zip(&latencies) {
            cells.push(match cell.parse::<f64>() {
                Ok(latency) if *is_latency => (latency * scale).to_string(),
                _ => cell.to_owned(),
            });
        }
        let _ = writeln!(text, "{}", cells.join(","));
    }
    Ok(text)
}

/// Returns the models of the profiles.
fn models(csv: &str) -> BTreeSet<String> {
    let rows = csv.lines().skip(1);
    let names = rows.filter_map(|row| row.split(',').next());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the scenario of the load, which can be simulated, too.
fn load(options: &Options, models: &BTreeSet<String>, seconds: u32) -> String {
    let mut text = format!(
        "name = \"cluster\"\nprofiles = [\"profiles.csv\"]\n\n[[devices]]\nkind = \"{KIND}\"\ncount = {}\ngpus_per_node = {}\n",
        options.nodes * options.gpus,
        options.gpus
    );
    for name in models {
        let _ = write!(
            text,
            "\n[[models]]\nname = \"{name}\"\nrate_rps = {}\nslo_ms = {}\npayload_bytes = {}\n",
            options.rate,
            SLO_MS * options.latency_scale,
            4 * ELEMENTS
        );
    }
    let _ = write!(text, "\n[simulation]\nwindow_s = {seconds}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_scaled_and_nothing_else() {
        let csv = "model,batch_size,latency_ms,latency_p99_ms,memory_mib\na,2,1.5,,7\nb,4,2,3,8\n";
        let expected =
            "model,batch_size,latency_ms,latency_p99_ms,memory_mib\na,2,15,,7\nb,4,20,30,8\n";
        assert_eq!(scaled(csv, 10.0).unwrap(), expected);
        assert_eq!(models(csv).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }
}
