//! `packhorse-lab plan --scenario`, `packhorse-lab simulate` and `packhorse-lab predict`, which need no gateway.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

const SCENARIO: &str = r#"
name = "two"
profiles = ["v100.csv"]
[[devices]]
kind = "V100-SXM2-16GB"
count = 2
[[models]]
name = "alexnet"
rate_rps = 400
slo_ms = 200
payload_bytes = 602112
[[models]]
name = "resnet50"
rate_rps = 200
slo_ms = 200
payload_bytes = 602112
[simulation]
window_s = 2.0
"#;

/// A folder with the scenario and its profiles.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/v100-thesis.csv");
    fs::copy(profiles, folder.path().join("v100.csv")).unwrap();
    let scenario = folder.path().join("two.toml");
    fs::write(&scenario, SCENARIO).unwrap();
    (folder, scenario)
}

fn run_lab(command: &str, scenario: &Path, options: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_packhorse-lab"));
    lab.arg(command).arg("--scenario").arg(scenario);
    lab.args(options).output().unwrap()
}

fn json(command: &str, scenario: &Path, options: &[&str]) -> Value {
    let output = run_lab(command, scenario, &[options, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn a_plan_for_a_scenario_keeps_the_contract() {
    let (_folder, scenario) = folder();
    let plan = json("plan", &scenario, &["--policy", "exclusive"]);
    let mut expected = vec![
        "scenario",
        "policy",
        "predicted_goodput_rps",
        "solve_ms",
        "replicas",
        "models",
        "unserved",
        "devices_used",
    ];
    let mut found = keys(&plan);
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(plan["scenario"], "two");
    assert_eq!(plan["policy"], "exclusive");
    assert_eq!(plan["models"][1]["name"], "resnet50");
    assert_eq!(plan["predicted_goodput_rps"], 600.0);
    assert_eq!(plan["devices_used"], 2);
}

#[test]
fn equal_input_gives_byte_identical_reports() {
    let (folder, scenario) = folder();
    let plan = folder.path().join("plan.json");
    fs::write(&plan, json("plan", &scenario, &[]).to_string()).unwrap();
    let options = ["--plan", plan.to_str().unwrap(), "--seed", "7", "--json"];
    let first = run_lab("simulate", &scenario, &options);
    assert!(first.status.success(), "{first:?}");
    assert_eq!(
        first.stdout,
        run_lab("simulate", &scenario, &options).stdout
    );
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(
        (&report["seed"], &report["discipline"]),
        (&Value::from(7), &Value::from("deadline"))
    );
    assert_eq!(report["plan"]["policy"], "file");
    let offered = report["models"][0]["offered_rps"].as_f64().unwrap();
    assert!((300.0..500.0).contains(&offered), "{offered}");
    assert!(report["totals"]["goodput_rps"].as_f64().unwrap() > 500.0);
}

/// The worked example of iGniter's README.
#[test]
fn igniter_reads_the_coefficients_that_the_scenario_names() {
    let scenario =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/igniter/readme.toml");
    let plan = json("plan", &scenario, &["--policy", "igniter"]);
    let replicas = plan["replicas"].as_array().unwrap();
    let placed = |model: &str| {
        let replica = replicas.iter().find(|r| r["model"] == model).unwrap();
        (
            replica["batch_size"].as_u64().unwrap(),
            replica["compute_share_pct"].as_f64().unwrap(),
        )
    };
    assert_eq!(replicas.len(), 3);
    assert_eq!(placed("alexnet"), (4, 10.0));
    assert_eq!(placed("resnet50"), (8, 30.0));
    assert_eq!(placed("vgg19"), (6, 37.5));
}

#[test]
fn repeated_flags_are_compared() {
    let (_folder, scenario) = folder();
    let options = [
        "--policy",
        "exclusive",
        "--policy",
        "first-fit",
        "--discipline",
        "fixed-wait",
        "--discipline",
        "deadline",
    ];
    let seeds = ["--seed", "1", "--seed", "2"];
    let reports = json("simulate", &scenario, &[&options[..], &seeds].concat());
    let key = |report: &Value| {
        format!(
            "{} {} {}",
            report["plan"]["policy"], report["discipline"], report["seed"]
        )
    };
    let keys: Vec<String> = reports.as_array().unwrap().iter().map(key).collect();
    assert_eq!(keys.len(), 8);
    assert_eq!(keys[0], "\"exclusive\" \"fixed-wait\" 1");
    assert_eq!(keys[7], "\"first-fit\" \"deadline\" 2");
}

#[test]
fn the_report_for_people_names_the_seed_first() {
    let (_folder, scenario) = folder();
    let output = run_lab("simulate", &scenario, &["--seed", "42"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.lines().next().unwrap().starts_with("seed 42"),
        "{text}"
    );
    assert!(text.contains("resnet50"), "{text}");
}

#[test]
fn csv_has_one_header_and_names_run_and_model() {
    let (_folder, scenario) = folder();
    let output = run_lab(
        "simulate",
        &scenario,
        &["--seed", "1", "--seed", "2", "--csv"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "scenario,policy,discipline,seed,model,offered_rps,throughput_rps,goodput_rps,dropped,lost,latency_p50_ms,\
         latency_p95_ms,latency_p99_ms,queue_p95_ms,batch_p95_ms,network_p95_ms,worker_queue_p95_ms,compute_p95_ms,mean_batch"
    );
    let keys: Vec<String> = lines[1..]
        .iter()
        .map(|line| {
            line.split(',')
                .skip(3)
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let expected = ["alexnet", "resnet50", "(total)"];
    let expected: Vec<String> = ["1", "2"]
        .iter()
        .flat_map(|seed| expected.map(|model| format!("{seed} {model}")))
        .collect();
    assert_eq!(keys, expected);
    let both = run_lab("simulate", &scenario, &["--csv", "--json"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn the_report_for_people_counts_what_faults_lost() {
    let (_folder, scenario) = folder();
    let fault = "faults = [{ at_s = 1.5, kind = \"node-lost\", node = 0, for_s = 6.0 }]\n";
    fs::write(&scenario, format!("{SCENARIO}{fault}")).unwrap();
    let options = ["--policy", "exclusive", "--discipline", "fixed-wait"];
    let output = run_lab("simulate", &scenario, &options);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("requests were lost with their workers:"),
        "{text}"
    );
}

#[test]
fn a_plan_file_that_does_not_fit_is_named_with_field_and_limit() {
    let (folder, scenario) = folder();
    let plan = folder.path().join("plan.json");
    let replica = |fields: &str| format!(r#"{{"replicas":[{{{fields}}}]}}"#);
    for (text, expected) in [
        (String::new(), "plan.json: EOF while parsing"),
        ("{}".to_owned(), "plan.json: missing field `replicas`"),
        (
            replica(r#""device":0,"batch_size":4"#),
            "missing field `model`",
        ),
        (
            replica(r#""model":"alexnet","device":5,"batch_size":4"#),
            "plan.json: replicas[0].device: the scenario has no device 5, but 2 devices, counted from 0",
        ),
        (
            replica(r#""model":"alexnet","device":-1,"batch_size":4"#),
            "invalid value: integer `-1`",
        ),
        (
            replica(r#""model":"bert","device":0,"batch_size":4"#),
            "plan.json: replicas[0].model: the scenario has no model \"bert\"",
        ),
        (
            replica(r#""model":"alexnet","device":0,"batch_size":0"#),
            "plan.json: replicas[0].batch_size: expected between 1 and 4096, not 0",
        ),
        (
            replica(r#""model":"alexnet","device":0,"batch_size":4,"compute_share_pct":101"#),
            "plan.json: replicas[0].compute_share_pct: ",
        ),
    ] {
        fs::write(&plan, &text).unwrap();
        let output = run_lab("simulate", &scenario, &["--plan", plan.to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_scenario_that_does_not_fit_is_named_with_field_and_line() {
    let (folder, scenario) = folder();
    let trace = folder.path().join("trace.csv");
    fs::write(&trace, "model,t_s\nalexnet,1\nalexnet,0.5\n").unwrap();
    for (text, expected) in [
        (String::new(), "two.toml: "),
        ("name = ".to_owned(), "line 1"),
        (
            SCENARIO.replace("window_s = 2.0", "window_s = 0.1"),
            "two.toml: simulation.window_s: expected at least 0.2 s, the SLO of models[0], not 0.1 s",
        ),
        (
            SCENARIO.replace("v100.csv", "missing.csv"),
            "two.toml: missing.csv: ",
        ),
        (
            format!("{SCENARIO}arrivals = {{ trace = \"trace.csv\" }}\n"),
            "two.toml: trace.csv: line 3: t_s: 0.5 comes after 1: the times must ascend",
        ),
    ] {
        fs::write(&scenario, &text).unwrap();
        let output = run_lab("simulate", &scenario, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn an_endless_file_is_refused_at_the_limit() {
    let (_folder, scenario) = folder();
    let limit = "the file is over the limit of 268435456 bytes\n";
    let error = refused("plan", Path::new("/dev/zero"), &[]);
    assert!(error.ends_with(limit), "{error}");
    fs::write(&scenario, SCENARIO.replace("v100.csv", "/dev/zero")).unwrap();
    let error = refused("plan", &scenario, &[]);
    assert!(error.ends_with(limit), "{error}");
}

#[test]
fn a_run_that_replans_follows_a_step_of_the_rate_and_says_so() {
    let (_folder, scenario) = folder();
    // Nexus plans for rates: 1800 requests/s want more replicas than 100 do.
    let step = SCENARIO.replace(
        "rate_rps = 200",
        "rate_rps = 100\nload_ms = 300\nrate_steps = [[2.0, 1800]]",
    );
    fs::write(&scenario, step.replace("window_s = 2.0", "window_s = 9.0")).unwrap();
    let options = ["--policy", "nexus", "--seed", "3"];
    let replan = [&options[..], &["--replan-every", "1"]].concat();
    let fixed = json("simulate", &scenario, &options);
    let replanned = json("simulate", &scenario, &replan);
    assert!(fixed.get("replanning").is_none());
    assert_eq!(replanned["replanning"]["asked"], 9);
    assert!(
        replanned["replanning"]["changed"].as_u64() > Some(0),
        "{}",
        replanned["replanning"]
    );
    assert_eq!(fixed["plan"]["replicas"], replanned["plan"]["replicas"]);
    let good = |report: &Value| report["totals"]["goodput_rps"].as_f64().unwrap();
    assert!(
        good(&replanned) > 1.1 * good(&fixed),
        "{} {}",
        good(&replanned),
        good(&fixed)
    );
    assert_eq!(
        run_lab("simulate", &scenario, &replan).stdout,
        run_lab("simulate", &scenario, &replan).stdout
    );
    let text = String::from_utf8(run_lab("simulate", &scenario, &replan).stdout).unwrap();
    assert!(text.contains("replanned 9 times, every 1 s:"), "{text}");
}

#[test]
fn a_load_that_ramps_from_one_model_to_another_is_followed_by_replanning() {
    let scenario = repository("scenarios/ramp/evening.toml");
    let options = ["--policy", "nexus"];
    let fixed = json("simulate", &scenario, &options);
    let replanned = json(
        "simulate",
        &scenario,
        &[&options[..], &["--replan-every", "2"]].concat(),
    );
    let of = |report: &Value, field: &str| report["totals"][field].as_f64().unwrap();
    // From second 1 to 61: 900 + 750 · 20 + 21,000 + 1,600 of resnet50, 8,100 + 500 · 20 + 1,500 + 14,400 of vgg19.
    let expected = 72_500.0 / 60.0;
    assert!(
        (of(&fixed, "offered_rps") / expected - 1.0).abs() < 0.01,
        "{}",
        fixed["totals"]
    );
    assert!(
        of(&replanned, "goodput_rps") > 1.1 * of(&fixed, "goodput_rps"),
        "{} {}",
        replanned["totals"],
        fixed["totals"]
    );
}

#[test]
fn a_plan_of_a_file_is_the_first_of_a_run_that_replans() {
    let (folder, scenario) = folder();
    let plan = folder.path().join("plan.json");
    fs::write(&plan, json("plan", &scenario, &[]).to_string()).unwrap();
    let timeline = folder.path().join("timeline.csv");
    let plan = ["--plan", plan.to_str().unwrap()];
    let replan = ["--replan", "--timeline", timeline.to_str().unwrap()];
    let report = json("simulate", &scenario, &[&plan[..], &replan].concat());
    assert_eq!(report["plan"]["policy"], "file");
    assert!(report["replanning"].is_object(), "{report}");
    let timeline = fs::read_to_string(&timeline).unwrap();
    assert!(
        timeline.starts_with("t_s,model,offered,within_slo,late,dropped,lost\n0,"),
        "{timeline}"
    );

    // Without replanning a policy has nothing to do beside a plan; with it, there is one.
    for options in [
        &["--policy", "usher"][..],
        &["--replan", "--policy", "usher", "--policy", "nexus"],
    ] {
        let output = run_lab("simulate", &scenario, &[&plan[..], options].concat());
        assert!(!output.status.success(), "{options:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("--policy"), "{error}");
    }
}

#[test]
fn replanning_needs_a_period() {
    let (_folder, scenario) = folder();
    for options in [
        &["--replan-every", "0"][..],
        &["--replan-every", "nan"],
        &["--replan-every", "1", "--replan"],
    ] {
        let output = run_lab("simulate", &scenario, options);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("--replan-every"), "{error}");
    }
}

#[test]
fn an_autoscaler_needs_replanning_and_is_reported_with_its_devices() {
    let (folder, _) = folder();
    let group = "count = 2\ngpus_per_node = 1\n[autoscale]\nkind = \"V100-SXM2-16GB\"\nmin = 1\nmax = 3\nstart_s = 5\n";
    let text = SCENARIO
        .replace("count = 2\n", group)
        .replace("window_s = 2.0", "window_s = 60.0");
    let scenario = folder.path().join("autoscale.toml");
    fs::write(&scenario, text).unwrap();
    let refused = run_lab("simulate", &scenario, &[]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        error.contains("autoscale") && error.contains("--replan"),
        "{error}"
    );

    // One device serves both models: the other is given up at the first decision, after 15 s.
    let options = ["--replan", "--policy", "first-fit"];
    let autoscale = &json("simulate", &scenario, &options)["autoscale"];
    assert_eq!(autoscale["kind"], "V100-SXM2-16GB");
    assert_eq!(autoscale["over_time"][0]["have"], 2);
    assert_eq!(autoscale["over_time"][1]["draining"], 1);
    assert_eq!(autoscale["over_time"][1]["needed"], 1);
    let hours = autoscale["device_hours"].as_f64().unwrap();
    assert!((61.0..2.0 * 61.0).contains(&(hours * 3600.0)), "{hours}");
    let text = run_lab("simulate", &scenario, &options);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("1 to 2 devices of V100-SXM2-16GB: 0.0"),
        "{text}"
    );
}

#[test]
fn plans_and_runs_are_drawn_as_svg() {
    let (folder, scenario) = folder();
    for command in ["plan", "simulate"] {
        let path = folder.path().join("picture.svg");
        let output = run_lab(command, &scenario, &["--plot", path.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let svg = fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg"), "{command}");
        assert!(svg.contains("resnet50") && svg.contains("alexnet"), "{svg}");
        let output = run_lab(command, &scenario, &["--plot", "picture.png"]);
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("ends in .svg"), "{message}");
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Returns the standard error of a failed command.
fn refused(command: &str, scenario: &Path, options: &[&str]) -> String {
    let output = run_lab(command, scenario, options);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn predicted_latencies_are_in_the_plans_order() {
    let scenario = repository("scenarios/igniter/readme.toml");
    let folder = TempDir::new().unwrap();
    let plan = json("plan", &scenario, &["--policy", "igniter"]);
    let file = folder.path().join("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let options = ["--policy", "igniter", "--plan", file];
    let predicted = json("predict", &scenario, &options);
    let replicas = predicted["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 3);
    for (predicted, planned) in replicas.iter().zip(plan["replicas"].as_array().unwrap()) {
        for key in keys(planned) {
            assert_eq!(predicted[key], planned[key]);
        }
        // Half of the largest SLO is for filling batches.
        let latency_ms = predicted["latency_ms"].as_f64().unwrap();
        assert!((1.0..30.0).contains(&latency_ms), "{predicted}");
    }
    let shown = run_lab("predict", &scenario, &options);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.lines().count(), 4, "{shown}");
    let other = refused("predict", &scenario, &["--policy", "usher", "--plan", file]);
    assert!(other.contains("usher has no model of latencies"), "{other}");
    let neither = refused("predict", &scenario, &["--policy", "igniter"]);
    assert!(neither.contains("--plan"), "{neither}");
}

#[test]
fn igniter_is_at_most_five_percent_off_the_measured_pairs() {
    let scenario = repository("scenarios/igniter/pairs.toml");
    let pairs = repository("scenarios/igniter/pairs.csv");
    let options = ["--policy", "igniter", "--measured", pairs.to_str().unwrap()];
    let report = json("predict", &scenario, &options);
    assert_eq!(report["measurements"], 1050);
    assert_eq!(report["models"].as_array().unwrap().len(), 4);
    let mean = report["mean_error_pct"].as_f64().unwrap();
    assert!(mean <= 5.0, "{mean}");
    let folder = TempDir::new().unwrap();
    let bad = folder.path().join("bad.csv");
    let text = fs::read_to_string(&pairs).unwrap();
    let lines: Vec<&str> = text.lines().take(2).collect();
    fs::write(
        &bad,
        format!(
            "{}\n{}\n",
            lines.join("\n"),
            lines[1].replace("alexnet", "bert")
        ),
    )
    .unwrap();
    let said = refused(
        "predict",
        &scenario,
        &["--policy", "igniter", "--measured", bad.to_str().unwrap()],
    );
    assert!(said.contains("line 3") && said.contains("bert"), "{said}");
}

#[test]
fn the_smallest_cluster_ignores_how_many_devices_there_are() {
    let scenario = repository("scenarios/thesis/6.1-gpus-1.toml");
    let plan = json("plan", &scenario, &["--policy", "usher", "--min-devices"]);
    assert_eq!(plan["devices_used"], 6);
    assert_eq!(plan["predicted_goodput_rps"], 2500.0);
    assert_eq!(plan["unserved"], serde_json::json!([]));
    assert_eq!(plan["devices"][0]["count"], 6);
    assert_eq!(plan["exhaustive"], true);
    let few = refused(
        "plan",
        &scenario,
        &["--policy", "usher", "--min-devices", "--max-devices", "5"],
    );
    assert!(
        few.contains("no cluster of up to 5 devices serves every model: "),
        "{few}"
    );
}

#[test]
fn the_cheapest_cluster_needs_a_price_for_every_kind() {
    let (_folder, scenario) = folder();
    let search = |flag: &str| json("plan", &scenario, &["--policy", "first-fit", flag]);
    let cheapest = search("--min-cost");
    assert_eq!(cheapest["cost_per_hour"], 3.06);
    assert_eq!(cheapest["ignored"], serde_json::json!([]));
    assert_eq!(search("--min-devices")["devices"], cheapest["devices"]);
    let text = fs::read_to_string(&scenario).unwrap();
    let unpriced = text.replace("count = 2", "count = 2\ncost_per_hour = \"unknown\"");
    fs::write(&scenario, unpriced).unwrap();
    let said = refused("plan", &scenario, &["--policy", "first-fit", "--min-cost"]);
    assert!(
        said.contains("--min-cost: the cost of V100-SXM2-16GB is unknown"),
        "{said}"
    );
    let said = refused("plan", &scenario, &["--min-cost", "--min-devices"]);
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn the_smallest_cluster_says_what_it_ignores() {
    let scenario = repository("scenarios/variants/classifiers.toml");
    let options = ["--policy", "first-fit", "--min-devices"];
    let plan = json("plan", &scenario, &options);
    assert_eq!(plan["ignored"], serde_json::json!(["families"]));
    let output = run_lab("plan", &scenario, &options);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("the search ignores the scenario's families: "),
        "{text}"
    );
}

#[test]
fn the_text_shows_replicas_by_device_and_the_reason_for_a_model_without_replicas() {
    let scenario = repository("scenarios/thesis/5.7.toml");
    let output = run_lab("plan", &scenario, &["--policy", "usher"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "thesis-5.7 by usher: an expected goodput of 1500 of 2000 requests/s, 3 replicas on 3 of 4 devices",
        "3  V100-SXM2-16GB  idle",
        "bert is not served: it needs 5 replicas or a multiple, and there are 4 devices",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{text}");
}

#[test]
fn an_explained_plan_names_the_limit_of_each_model_and_keeps_its_shape() {
    let (_folder, scenario) = folder();
    let text = fs::read_to_string(&scenario).unwrap();
    // A device carries about 8200 requests/s of alexnet.
    let text = text.replace("count = 2", "count = 1");
    let text = text.replace("rate_rps = 400", "rate_rps = 9000");
    fs::write(&scenario, text.replace("rate_rps = 200", "rate_rps = 20")).unwrap();
    let plain = json("plan", &scenario, &["--policy", "goodput"]);
    let mut explained = json("plan", &scenario, &["--policy", "goodput", "--explain"]);
    let models = explained["models"].as_array_mut().unwrap();
    let found: Vec<Value> = models
        .iter_mut()
        .map(|model| {
            model
                .as_object_mut()
                .unwrap()
                .remove("explanation")
                .unwrap()
        })
        .collect();
    assert_eq!(explained["models"], plain["models"]);
    assert_eq!(found[0]["bound"]["by"], "device-time");
    assert!(found[0]["served_fraction"].as_f64().unwrap() < 0.95);
    let remedies = found[0]["remedies"].as_array().unwrap();
    assert_eq!(remedies[0]["change"], "add-devices");
    assert!(
        remedies
            .iter()
            .all(|remedy| remedy["served_fraction"].as_f64().unwrap() >= 0.99)
    );

    let output = run_lab("plan", &scenario, &["--policy", "goodput", "--explain"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("alexnet:") && text.contains("limited by device time"),
        "{text}"
    );
    assert!(text.contains("more V100-SXM2-16GB would suffice"), "{text}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "searching for changes that would serve all models\n");
}

#[test]
fn a_single_run_is_traced() {
    let (folder, scenario) = folder();
    let file = folder.path().join("run.json");
    let trace = ["--trace", file.to_str().unwrap(), "--trace-length", "0.5"];
    let plain = json("simulate", &scenario, &[]);
    assert_eq!(
        json("simulate", &scenario, &trace)["models"],
        plain["models"]
    );
    let trace_of = || -> Value { serde_json::from_slice(&fs::read(&file).unwrap()).unwrap() };
    let events = trace_of()["traceEvents"].as_array().unwrap().len();
    assert!(events > 100, "{events}");
    let replanned = [&trace[..], &["--replan-every", "1"]].concat();
    json("simulate", &scenario, &replanned);
    assert!(trace_of()["traceEvents"].as_array().unwrap().len() > 100);

    let two = [&trace[..], &["--seed", "1", "--seed", "2"]].concat();
    let refused = run_lab("simulate", &scenario, &two);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("--trace: expected a single run"), "{error}");
    let nowhere = ["--trace", "/nowhere/run.json"];
    assert_eq!(
        run_lab("simulate", &scenario, &nowhere).status.code(),
        Some(1)
    );
}

/// The output of `packhorse plan export` for a cluster with a cordoned and a drained node.
const EXPORTED: &str = include_str!("../../../crates/simulator/src/scenario/context/exported.toml");

fn exported() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let scenario = folder.path().join("live.toml");
    fs::write(&scenario, EXPORTED).unwrap();
    (folder, scenario)
}

#[test]
fn an_exported_scenario_is_planned_as_the_gateway_plans() {
    let (_folder, scenario) = exported();
    let plan = json("plan", &scenario, &[]);
    assert_eq!(plan["policy"], "first-fit");
    let replica = |model: &str, device: u64| {
        serde_json::json!({
            "model": model, "device": device, "batch_size": 8, "compute_share_pct": null,
        })
    };
    // The replica of `a` stays where it is.
    let expected = serde_json::json!([replica("a", 1), replica("b:2", 0)]);
    assert_eq!(plan["replicas"], expected);
    let names = serde_json::json!(["n/sim0", "n/sim1", "o/sim0"]);
    assert_eq!(plan["device_names"], names);
    let kept = plan["kept"].as_array().unwrap();
    let kept = kept.iter().map(|kept| kept["device"].as_str().unwrap());
    assert_eq!(kept.collect::<Vec<_>>(), ["q/sim0", "p/sim0"]);
    let text = run_lab("plan", &scenario, &["--explain"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("n/sim1") && text.contains("b:2 stays on p/sim0 with batches of 8"),
        "{text}"
    );
    // The flags go before the file.
    let other = json("plan", &scenario, &["--policy", "exclusive"]);
    assert_eq!(other["policy"], "exclusive");
}

#[test]
fn an_exported_scenario_is_simulated_with_its_policy_and_discipline() {
    let (_folder, scenario) = exported();
    let report = json("simulate", &scenario, &[]);
    assert_eq!(
        (&report["plan"]["policy"], &report["discipline"]),
        (&Value::from("first-fit"), &Value::from("fixed-wait"))
    );
    assert_eq!(report["models"].as_array().unwrap().len(), 2);
    let report = json("simulate", &scenario, &["--discipline", "deadline"]);
    assert_eq!(report["discipline"], "deadline");
}

#[test]
fn a_policy_of_a_scenario_that_does_not_exist_is_refused() {
    let (_folder, scenario) = exported();
    fs::write(&scenario, EXPORTED.replace("first-fit", "best")).unwrap();
    let output = run_lab("plan", &scenario, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        error.contains("policy of the scenario") && error.contains("first-fit"),
        "{error}"
    );
}
