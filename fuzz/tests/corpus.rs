//! Every committed input, and seeded mutations of them, in CI: as many as take a few seconds for each target.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::{fs, path::PathBuf};

use packhorse_fuzz::{Mutator, TARGETS};

/// The number of mutated inputs of each target.
const MUTATIONS: u32 = 20_000;
/// The most bytes of a target's inputs.
const CORPUS_LIMIT: usize = 1 << 20;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let bytes: usize = inputs.iter().map(Vec::len).sum();
    assert!(bytes <= CORPUS_LIMIT, "{name} has {bytes} bytes");
    assert!(inputs.len() > 1, "{name} has hardly any inputs");
    inputs
}

fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let inputs = corpus(name);
    for input in &inputs {
        (target.run)(input);
    }
    let mut mutator = Mutator::new(1);
    for _ in 0..MUTATIONS {
        (target.run)(&mutator.mutate(&inputs));
    }
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), tested);
        }
    };
}

targets!(
    http_json,
    http_binary,
    rows,
    grpc_infer,
    wire_decoder,
    wire_handshake,
    profile_csv,
    scenario_toml,
    artifact,
    picture,
    declaration,
    triton_config,
    agent_status,
    agent_lease
);
