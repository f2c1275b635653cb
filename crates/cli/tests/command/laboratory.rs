//! The commands that `packhorse` passes on to `packhorse-lab`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use packhorse_stand_in::Gateway;

/// Command lines that are passed on as they are.
const PASSED_ON: [&[&str]; 10] = [
    &["simulate", "--scenario", "s.toml", "--json"],
    &["simulate", "--help"],
    &["--json", "simulate", "--scenario", "s.toml"],
    &["predict", "--scenario", "s.toml"],
    &["bench", "m", "--rate", "200", "--url", "http://127.0.0.1:1"],
    &[
        "plan",
        "--scenario",
        "s.toml",
        "--policy",
        "usher",
        "--min-devices",
    ],
    &["profile", "record", "m.json", "--ncu"],
    &["profile", "pairs", "a.json=a.pt"],
    &["profile", "kernels", "batch.json"],
    &["profile", "plot", "m", "k.svg"],
];

#[tokio::test]
async fn commands_of_the_laboratory_are_passed_on_with_their_arguments_and_status() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let program = gateway.install();
    let lab = program.with_file_name("packhorse-lab");
    fs::write(&lab, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&lab, fs::Permissions::from_mode(0o755)).unwrap();
    for args in PASSED_ON {
        let ran = gateway.run_program(&program, args);
        assert_eq!(ran.stdout, format!("{}\n", args.join("\n")), "{ran:?}");
        assert_eq!(ran.code, 7, "{ran:?}");
    }
}

#[tokio::test]
async fn without_the_laboratory_its_commands_say_where_to_get_it() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let program = gateway.install();
    for args in PASSED_ON {
        let ran = gateway.run_program(&program, args);
        let expected =
            "error: packhorse-lab does this, and is neither beside this program nor on the PATH; ";
        assert!(ran.error().starts_with(expected), "{ran:?}");
    }
}

#[tokio::test]
async fn flags_for_scenarios_need_a_scenario() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let ran = gateway.run(&["plan", "--min-devices"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("--scenario <FILE>"), "{ran:?}");
}
