//! Fuzz targets: functions of any bytes that panic where an invariant does not hold.
//!
//! `tests/corpus.rs` runs them in CI on their committed inputs and on mutations of these; `cargo xtask fuzz` runs them in libFuzzer.

mod mutation;
mod targets;

pub use mutation::Mutator;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name, which is also that of the folder of its inputs.
    pub name: &'static str,
    /// The function. It panics where an invariant does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 14] = [
    Target {
        name: "http_json",
        run: targets::http::json,
    },
    Target {
        name: "http_binary",
        run: targets::http::binary,
    },
    Target {
        name: "rows",
        run: targets::http::rows,
    },
    Target {
        name: "grpc_infer",
        run: targets::grpc::infer,
    },
    Target {
        name: "wire_decoder",
        run: targets::wire::decoder,
    },
    Target {
        name: "wire_handshake",
        run: targets::wire::handshake,
    },
    Target {
        name: "profile_csv",
        run: targets::files::profile_csv,
    },
    Target {
        name: "scenario_toml",
        run: targets::files::scenario_toml,
    },
    Target {
        name: "artifact",
        run: targets::artifact::file,
    },
    Target {
        name: "picture",
        run: targets::picture::picture,
    },
    Target {
        name: "declaration",
        run: targets::declaration::declaration,
    },
    Target {
        name: "triton_config",
        run: targets::files::triton_config,
    },
    Target {
        name: "agent_status",
        run: targets::agent::status,
    },
    Target {
        name: "agent_lease",
        run: targets::agent::lease,
    },
];
