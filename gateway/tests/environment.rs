//! The environment variables of the gateway's program.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

use std::process::{Command, Output};

/// The variables of OpenTelemetry that the gateway reads.
const VARIABLES: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER_ARG",
];

/// Starts the gateway with these variables and asks for the health of another, so that it ends once its flags have been read.
fn start(variables: impl IntoIterator<Item = (&'static str, &'static str)>) -> Output {
    let mut gateway = Command::new(env!("CARGO_BIN_EXE_packhorse-gateway"));
    for name in VARIABLES {
        gateway.env_remove(name);
    }
    // Nobody listens on port 1.
    gateway.args(["--check-health", "--listen", "127.0.0.1:1"]);
    gateway.envs(variables).output().unwrap()
}

#[test]
fn empty_variables_of_opentelemetry_are_as_if_they_were_not_set() {
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let unset = start([]);
    let empty = start(VARIABLES.map(|name| (name, "")));
    assert_eq!(said(&empty), said(&unset));
    assert_eq!(empty.status, unset.status);
    for name in VARIABLES {
        let one = start([(name, "")]);
        assert_eq!(said(&one), said(&unset), "{name}");
    }
    // The flags are read: what is set and wrong is refused by name.
    let wrong = start([("OTEL_TRACES_SAMPLER_ARG", "often")]);
    assert!(said(&wrong).contains("--trace-sample"), "{}", said(&wrong));
    assert_ne!(wrong.status, unset.status);
}
