//! Random networks through the whole start of a worker: what each then answers is compared with what plain PyTorch answers.
//!
//! `PACKHORSE_NETWORKS` is their number (200 without it, 2,000 in the laboratory), `PACKHORSE_FIRST_NETWORK` the seed of the first. A network that
//! answers otherwise is printed with its seed, which gives it again.
#![expect(
    clippy::disallowed_methods,
    reason = "a test's size is set by the environment"
)]

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use packhorse_cluster::{ArtifactDigest, Program, Shape, TensorSpec};
use packhorse_wire::TensorHeader;
use packhorse_worker_agent::handoff::{Optimize, PipelineSettings};
use serde::Deserialize;

use super::{
    attempt::{Start, configure},
    options::StartOptions,
    programs::Programs,
    shim::Optimization,
    start::start,
    verify,
};
use crate::{
    executor::{
        stages::Executor,
        started::{Started, WarmUpSizes},
        verification::{Answer, Precision, compare, noise},
    },
    process_memory,
};

/// The number of networks of a usual run.
const NETWORKS: u64 = 200;
/// The number of networks that are run with all of libtorch's steps, among which are some that it rewrites wrongly.
const UNGUARDED: u64 = 60;

/// A network as `networks.py` writes it.
#[derive(Deserialize)]
struct Network {
    seed: u64,
    source: String,
    max_batch_size: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    cases: Vec<Case>,
}

/// A batch with what plain PyTorch answers to it, and to one that is a rounding away.
#[derive(Deserialize)]
struct Case {
    rows: u32,
    input: String,
    answers: Vec<String>,
    near: Vec<String>,
}

impl Network {
    fn program(&self) -> Program {
        Program {
            model: "network:1".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: self.max_batch_size,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
        }
    }

    /// Returns what is wrong with the answers of an executor; nothing if they are those of PyTorch.
    fn difference(&self, executor: &dyn Executor) -> Option<String> {
        self.cases.iter().find_map(|case| {
            let expected = self.answers(case, &case.answers);
            // An answer that a rounding changes much says nothing.
            let noise = noise(&expected, &self.answers(case, &case.near))?;
            match self.run(executor, case) {
                Ok(found) => compare(&expected, &noise, &found, Precision::Full)
                    .err()
                    .map(|difference| difference.to_string()),
                Err(error) => Some(error),
            }
        })
    }

    fn answers(&self, case: &Case, encoded: &[String]) -> Vec<Answer> {
        let answers = self.outputs.iter().zip(encoded);
        let answer = |(spec, encoded): (&TensorSpec, &String)| Answer {
            header: header(spec, case.rows),
            bytes: hex::decode(encoded).unwrap(),
        };
        answers.map(answer).collect()
    }

    fn run(&self, executor: &dyn Executor, case: &Case) -> Result<Vec<Answer>, String> {
        let headers = [header(&self.inputs[0], case.rows)];
        let mut batch = executor.prepare(&headers).map_err(|e| e.to_string())?;
        batch
            .input_mut(0)
            .copy_from_slice(&hex::decode(&case.input).unwrap());
        let outputs = batch.run().map_err(|e| e.to_string())?.outputs;
        let answer = |output: crate::executor::OutputTensor| Answer {
            bytes: (*output.bytes).as_ref().to_vec(),
            header: output.header,
        };
        Ok(outputs.into_iter().map(answer).collect())
    }
}

fn header(spec: &TensorSpec, rows: u32) -> TensorHeader {
    let mut dims: Vec<i64> = spec.shape.iter().map(|dim| i64::from(*dim)).collect();
    dims[0] = rows.into();
    TensorHeader::new(spec.datatype, Shape::new(&dims).unwrap()).unwrap()
}

/// Returns the networks, in ascending order of their seeds, with their files. They are written once for each version of the script.
fn networks(count: u64) -> Vec<(Network, PathBuf)> {
    let first = env::var("PACKHORSE_FIRST_NETWORK").map_or(1, |seed| seed.parse().unwrap());
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = project.join("worker-agent/tests/worker/networks.py");
    let folder = project.join(format!("target/tmp/networks-{first}-{count}"));
    fs::create_dir_all(&folder).unwrap();
    // Tests run in several processes at the same time.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let made_from = folder.join("made-from");
    let content = fs::read(&script).unwrap();
    if fs::read(&made_from).ok().as_ref() != Some(&content) {
        let python = project.join(".venv/bin/python");
        let arguments = [first.to_string(), count.to_string()];
        let status = Command::new(python)
            .arg(script)
            .arg(&folder)
            .args(arguments)
            .status();
        assert!(
            status
                .expect("`cargo xtask setup` has made .venv")
                .success()
        );
        fs::write(made_from, content).unwrap();
    }
    let files = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let described = files.filter(|file| file.extension().is_some_and(|end| end == "json"));
    let mut networks: Vec<(Network, PathBuf)> = described
        .map(|file| {
            let network = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            (network, file.with_extension("pt"))
        })
        .collect();
    networks.sort_by_key(|(network, _)| network.seed);
    networks
}

fn options<'a>(program: &'a Program, artifact: &'a Path, optimize: Optimize) -> StartOptions<'a> {
    StartOptions {
        program,
        artifact,
        cuda_device: None,
        threads: 1,
        batch_size: program.max_batch_size,
        sizes: WarmUpSizes::PowersOfTwo,
        optimize,
        parks: false,
        pipeline: PipelineSettings::default(),
    }
}

#[test]
fn every_network_answers_what_plain_pytorch_answers() {
    let count = env::var("PACKHORSE_NETWORKS").map_or(NETWORKS, |n| n.parse().unwrap());
    let mut wrong = Vec::new();
    let (mut compared, mut dropped) = (0, 0);
    for (network, file) in networks(count) {
        let program = network.program();
        let options = options(&program, &file, Optimize::Verify);
        let Started {
            executor,
            verification,
            ..
        } = start(&options).unwrap_or_else(|e| panic!("seed {}: {e}", network.seed));
        let verification = verification.unwrap();
        compared += usize::from(verification.compared > 0);
        for one in &verification.dropped {
            dropped += 1;
            println!(
                "seed {}: without {}: {}",
                network.seed, one.rewriting, one.reason
            );
        }
        if let Some(difference) = network.difference(&*executor) {
            println!("seed {}: {difference}\n{}", network.seed, network.source);
            wrong.push(network.seed);
        }
    }
    println!("{count} networks, {compared} compared at load, {dropped} rewritings dropped");
    assert!(wrong.is_empty(), "wrong answers, by seed: {wrong:?}");
    // A network with random inputs that it refuses would be no evidence.
    assert!(compared as u64 > count * 9 / 10);
}

#[test]
fn what_libtorch_rewrites_wrongly_is_found_when_it_is_loaded() {
    let mut wrong = 0;
    for (network, file) in networks(UNGUARDED) {
        let program = network.program();
        let options = options(&program, &file, Optimize::Verify);
        configure(&options).unwrap();
        let start = Start {
            options: &options,
            names: Programs::from_single(String::new()),
            shared_before: process_memory::shared(),
        };
        let unverified = start.unverified(Optimization::Unguarded);
        let is_wrong = match &unverified {
            Ok(started) => network.difference(&*started.executor).is_some(),
            Err(_) => false,
        };
        wrong += usize::from(is_wrong);
        let verified = verify::start_optimized(&start, Optimization::Unguarded).unwrap();
        let dropped = verified.verification.unwrap().dropped;
        assert!(!is_wrong || !dropped.is_empty(), "seed {}", network.seed);
        let difference = network.difference(&*verified.executor);
        assert_eq!(difference, None, "seed {}", network.seed);
    }
    println!("{wrong} of {UNGUARDED} networks are rewritten wrongly by libtorch");
    assert!(wrong > 0);
}
