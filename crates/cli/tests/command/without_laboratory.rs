//! The commands and flags of the laboratory in a build without it.

use crate::gateway::Gateway;

#[tokio::test]
async fn commands_and_flags_of_the_laboratory_say_that_they_are_not_in_this_build() {
    let gateway = Gateway::start().await;
    for (args, used) in [
        (
            &["simulate", "--scenario", "s.toml", "--json"][..],
            "packhorse simulate",
        ),
        (&["predict", "--scenario", "s.toml"], "packhorse predict"),
        (&["bench"], "packhorse bench"),
        (
            &["plan", "--scenario", "s.toml", "--policy", "usher"],
            "packhorse plan --scenario",
        ),
        (
            &["profile", "record", "m.json", "--ncu"],
            "packhorse profile record",
        ),
        (
            &["profile", "pairs", "a.json=a.pt"],
            "packhorse profile pairs",
        ),
        (
            &["profile", "kernels", "batch.json"],
            "packhorse profile kernels",
        ),
    ] {
        let ran = gateway.run_bare(args);
        let expected = format!(
            "error: this packhorse was built without the feature `laboratory`, which {used} needs; "
        );
        assert!(ran.error().starts_with(&expected), "{ran:?}");
    }
    let image = gateway.run_bare(&["infer", "m", "--image", "cat.jpg", "--resize", "256"]);
    assert_eq!(image.code, 2, "{image:?}");
    let expected = "without the feature `laboratory`, which packhorse infer --image needs";
    assert!(image.stderr.contains(expected), "{image:?}");
}
