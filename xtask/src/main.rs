//! `cargo xtask`: everything one does with this repository beside writing code. It depends on little, so that it builds in
//! seconds on a machine that has nothing yet.
#![expect(clippy::print_stdout, reason = "a command for people at a terminal")]

mod bench;
mod chaos;
mod ci;
mod cluster;
mod debian;
mod demo;
mod dist;
mod docs;
mod experiments;
mod fuzz;
mod gpu_check;
mod grpc;
mod http;
mod local;
mod pgo;
mod postgres;
mod processes;
mod release;
mod seeds;
mod setup;
mod soak;
mod steps;
mod test;
mod train;
mod units;
mod unpacked;
mod web;
mod wheel;
mod workspace;

use clap::{Parser, Subcommand};

/// Project chores.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Makes the virtual environment that holds libtorch, or finds it up to date.
    Setup,
    /// Serves two real models on this machine and shows what they answer, until Ctrl-C.
    Demo(demo::Options),
    /// Serves the thesis' models on simulated GPUs of several nodes, with the real programs, until Ctrl-C.
    Cluster(cluster::Options),
    /// Measures and writes a report to docs/benchmarks.
    #[command(subcommand)]
    Bench(Bench),
    /// Runs the experiments of the thesis again and writes docs/experiments.
    #[command(disable_help_flag = true)]
    Experiments {
        /// See `cargo xtask experiments --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Trains a policy that learns, and writes its weights, docs/experiments/inss.md and the learning curve.
    #[command(disable_help_flag = true)]
    Train {
        /// See `cargo xtask train --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Runs the fuzz targets in libFuzzer, guided by coverage
    Fuzz(fuzz::Options),
    /// Attacks a cluster for minutes or hours, and checks memory, descriptors and every answer
    Soak(soak::Options),
    /// Kills and stops the real programs of a cluster at random, under load, after which everything must heal
    Chaos(chaos::Options),
    /// Lets random histories of a whole cluster happen in virtual time, after which everything must heal
    Seeds(seeds::Options),
    /// Measures what needs a GPU, on this host or, packed, on another.
    GpuCheck(gpu_check::Options),
    /// Records the profile that release builds are optimised with (profile-guided optimization).
    Pgo,
    /// Builds the release archive.
    Dist(dist::Options),
    /// Builds the Python package, which is a wheel with the programs.
    Wheel(wheel::Options),
    /// Builds the book of docs, and checks its commands, links and reference.
    Docs(docs::Options),
    /// Writes the messages of gRPC anew, from crates/grpc/proto.
    Grpc,
    /// Builds the dashboard: web/dist, which the gateway embeds.
    Web,
    /// Runs every test there is, Rust, Python and the dashboard's.
    Test,
    /// Runs what CI runs: format, lints, licences, and every test.
    Ci,
}

#[derive(Subcommand)]
enum Bench {
    /// Measures what gateway and worker add over calling libtorch directly.
    Gateway(bench::Options),
    /// Measures the data plane beside programs that do less on the same path.
    DataPlane(bench::data_plane::Options),
    /// Measures requests over gRPC beside the plainest server of tonic, and beside HTTP.
    Grpc(bench::data_plane::grpc::Options),
    /// Measures a network on the CPU: libtorch alone, and through Packhorse.
    Cpu(bench::cpu::Options),
    /// Models that share a backbone: eight heads on one network beside one of them alone
    Backbone(bench::backbone::Options),
    /// Measures the solve time of each placement policy, up to 6,000 devices and 2,000 models.
    Placement(bench::placement::Options),
    /// Measures the decisions per second of the serving engine, and the speed of the simulator.
    Engine(bench::engine::Options),
    /// Measures the cost of the control plane's decisions at 1,000 nodes and 2,000 models.
    Control(bench::control::Options),
    /// Measures goodput and the time of refusals over the offered load.
    Overload(bench::cluster::Overload),
    /// Measures the p99 of one model beside attacks on others, and of one key beside attacks of another.
    Isolation(bench::cluster::Isolation),
    /// Compares the programs with those of another version: requests, processor time and starts.
    Versions(bench::cluster::Versions),
    /// Measures how soon a gateway with a thousand models serves again after it was killed.
    Restart(bench::cluster::Restart),
    /// Measures what many small models take in processes of their own, and in one that they share.
    PoolWorker(bench::cluster::PoolWorker),
    /// Serves two hundred models in the memory of ten, twenty and fifty.
    ManyModels(bench::cluster::ManyModels),
    /// Measures the size of a scrape at a thousand models, and the cost of traces.
    Observability(bench::cluster::Observability),
    /// Measures the cost of TLS for clients, and between gateway and worker.
    Tls(bench::cluster::Tls),
    /// Measures what the confinement of workers costs: their start, and a tiny model's requests.
    Confinement(bench::cluster::Confinement),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Setup => setup::run(),
        Chore::Demo(options) => demo::run(&options),
        Chore::Cluster(options) => cluster::run(&options),
        Chore::Bench(Bench::Gateway(options)) => bench::run(&options),
        Chore::Bench(Bench::DataPlane(options)) => bench::data_plane::run(&options),
        Chore::Bench(Bench::Grpc(options)) => bench::data_plane::grpc::run(&options),
        Chore::Bench(Bench::Cpu(options)) => bench::cpu::run(&options),
        Chore::Bench(Bench::Backbone(options)) => bench::backbone::run(&options),
        Chore::Bench(Bench::Placement(options)) => bench::placement::run(&options),
        Chore::Bench(Bench::Engine(options)) => bench::engine::run(&options),
        Chore::Bench(Bench::Control(options)) => bench::control::run(&options),
        Chore::Bench(Bench::Overload(options)) => bench::cluster::overload(&options),
        Chore::Bench(Bench::Isolation(options)) => bench::cluster::isolation(&options),
        Chore::Bench(Bench::Restart(options)) => bench::cluster::restart(&options),
        Chore::Bench(Bench::Versions(options)) => bench::cluster::versions(&options),
        Chore::Bench(Bench::PoolWorker(options)) => bench::cluster::pool_worker(&options),
        Chore::Bench(Bench::ManyModels(options)) => bench::cluster::many_models(&options),
        Chore::Bench(Bench::Observability(options)) => bench::cluster::observability(&options),
        Chore::Bench(Bench::Tls(options)) => bench::cluster::tls(&options),
        Chore::Bench(Bench::Confinement(options)) => bench::cluster::confinement(&options),
        Chore::Experiments { options } => experiments::run(&options),
        Chore::Train { options } => train::run(&options),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Soak(options) => soak::run(&options),
        Chore::Chaos(options) => chaos::run(&options),
        Chore::Seeds(options) => seeds::run(&options),
        Chore::GpuCheck(options) => gpu_check::run(&options),
        Chore::Pgo => pgo::run(),
        Chore::Dist(options) => dist::run(&options),
        Chore::Wheel(options) => wheel::run(&options),
        Chore::Docs(options) => docs::run(&options),
        Chore::Grpc => grpc::run(),
        Chore::Web => web::run(),
        Chore::Test => test::run(),
        Chore::Ci => ci::run(),
    }
}
