//! The generated code is what the files of `proto` say. `cargo xtask grpc` writes it.

use std::{fs, path::Path};

use prost::Message as _;

/// The files of `proto`.
const FILES: [&str; 3] = ["inference.proto", "health.proto", "reflection.proto"];

#[expect(
    clippy::disallowed_methods,
    reason = "how a test is asked to rewrite its expectation"
)]
fn rewrites() -> bool {
    std::env::var("PACKHORSE_BLESS").is_ok_and(|value| value == "1")
}

#[test]
fn the_generated_code_is_that_of_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    fs::create_dir_all(&made).unwrap();
    let mut set = protox::compile(FILES, [root.join("proto")]).unwrap();
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        .out_dir(&made)
        .compile_fds(set.clone())
        .unwrap();
    // Comments and places are for readers of the files.
    for file in &mut set.file {
        file.source_code_info = None;
    }
    fs::write(made.join("descriptors.bin"), set.encode_to_vec()).unwrap();
    let committed = root.join("src/generated");
    let names = [
        "inference.rs",
        "grpc.health.v1.rs",
        "grpc.reflection.v1.rs",
        "descriptors.bin",
    ];
    let bless = rewrites();
    for name in names {
        let made = fs::read(made.join(name)).unwrap();
        let file = committed.join(name);
        if bless {
            fs::create_dir_all(&committed).unwrap();
            fs::write(file, made).unwrap();
        } else {
            let is_current = fs::read(file).is_ok_and(|found| found == made);
            assert!(
                is_current,
                "src/generated/{name} is stale: run `cargo xtask grpc`"
            );
        }
    }
}
