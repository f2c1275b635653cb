use packhorse_cluster::ModelIndex;

use packhorse_cluster::DeviceIndex;

use super::*;

const HEAD: &str = r#"
name = "two"
profiles = ["p.csv"]
[[devices]]
kind = "V100-SXM2-16GB"
count = 3
gpus_per_node = 2
"#;

const MODEL: &str = r#"
[[models]]
name = "a"
rate_rps = 400
slo_ms = 200
payload_bytes = 602112
"#;

fn load(path: &str) -> Result<String, String> {
    let rows = "a,V100-SXM2-16GB,4,,8,,100,,,50\na,V100-SXM2-16GB,8,,10,,200,,,90\n";
    match path {
        "p.csv" => Ok(format!("{}\n{rows}", ProfileTable::CSV_HEADER)),
        "sorted.csv" => Ok("model,t_s\na,0.5\na,0.5\na,2\n".to_owned()),
        "unsorted.csv" => Ok("model,t_s\na,0.5\na,0.25\n".to_owned()),
        "negative.csv" => Ok("model,t_s\na,-0.5\n".to_owned()),
        "stranger.csv" => Ok("model,t_s\nb,0.5\n".to_owned()),
        "empty.csv" => Ok("model,t_s\n".to_owned()),
        "spaced.csv" => Ok("model,t_s\n\na,0.5\n\na,nan\n".to_owned()),
        "word.csv" => Ok("model,t_s\na,soon\n".to_owned()),
        "headless.csv" => Ok("a,0.5\n".to_owned()),
        "wide.csv" => Ok("model,t_s\na,0.5,1\n".to_owned()),
        "backwards.csv" => Ok("minute,x\n1,30\n2,-90\n".to_owned()),
        "narrow.csv" => Ok("minute\n1\n".to_owned()),
        "idle.csv" => Ok("minute,x\n1,0\n".to_owned()),
        "minutes.csv" => Ok("minute,x\n1,30\n2,90\n".to_owned()),
        _ => Err("no such file".to_owned()),
    }
}

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, &mut load)
}

fn error(text: &str) -> String {
    with_sources(&parse(text).unwrap_err())
}

/// Returns the text of an error with those of its sources.
pub(super) fn with_sources(error: &ScenarioError) -> String {
    let mut error: &dyn std::error::Error = error;
    let mut message = error.to_string();
    while let Some(source) = error.source() {
        error = source;
        message = format!("{message}: {error}");
    }
    message
}

/// Returns the rate at these seconds.
fn rates(workload: &Workload, seconds: &[u64]) -> Vec<f64> {
    let at = |&second| workload.rate.at(Time::ZERO + Duration::from_secs(second));
    seconds.iter().map(at).collect()
}

#[test]
fn a_scenario_without_options_has_the_defaults_of_the_format() {
    let scenario = parse(&format!("{HEAD}{MODEL}")).unwrap();
    assert_eq!(scenario.name, "two");
    assert_eq!(scenario.max_batch_wait, Duration::from_millis(100));
    let nodes: Vec<&str> = scenario
        .problem
        .devices
        .iter()
        .map(|device| device.node.as_str())
        .collect();
    assert_eq!(nodes, ["node0", "node0", "node1"]);
    assert_eq!(
        scenario.problem.devices[0].memory,
        ByteCount::from_mib(16_384).unwrap()
    );
    assert_eq!(scenario.problem.devices[0].multiprocessors, Some(80));
    let model = &scenario.problem.models[0];
    assert_eq!((model.max_batch_size, model.payload.as_u64()), (8, 602_112));
    assert!(
        scenario
            .problem
            .profile(ModelIndex(0), DeviceIndex(2))
            .is_some()
    );
    let simulation = &scenario.simulation;
    assert_eq!(
        (simulation.warmup, simulation.window),
        (Duration::from_secs(1), Duration::from_secs(8))
    );
    assert_eq!(simulation.router_overhead, Duration::from_micros(500));
    assert_eq!(simulation.network, NetworkModel::default());
    assert_eq!(simulation.links, Links::Instant);
    assert_eq!(simulation.return_time, Duration::from_micros(361));
    assert_eq!(simulation.interference, Interference::default());
    assert_eq!(simulation.arrivals, Arrivals::Poisson);
    let workload = &scenario.workloads[0];
    assert!((workload.latency_scale - 1.0).abs() < 1e-9 && workload.rate.is_constant());
}

#[test]
fn every_key_of_the_format_is_read() {
    let text = format!(
        r#"max_batch_wait_ms = 20
        {HEAD} memory_mib = 8192
        sm_count = 40
        cost_per_hour = 3.06
        {MODEL} requests = 4000
        latency_scale = 1.22
        load_ms = 600
        rate_steps = [[10.0, 800], [20, 0], [30, 600, 10]]
        [simulation]
        latency_scale = 1.05
        client_overhead_ms = 0.308
        network_bytes_per_s = 1e9
        links = "queue"
        extra_slowdown = 0.3
        arrivals = {{ gamma_cv = 2.0 }}
        faults = [
            {{ at_s = 4.0, kind = "worker-dies", device = 2, for_s = 3.0 }},
            {{ at_s = 1, kind = "slow-worker", device = 0, factor = 2.5, for_s = 1 }},
            {{ at_s = 1, kind = "network-delay", delay_ms = 5, for_s = 1 }},
            {{ at_s = 1, kind = "node-lost", node = 1, for_s = 1 }},
            {{ at_s = 1, kind = "agent-dies", node = 0, for_s = 1 }},
            {{ at_s = 1, kind = "gateway-dies", for_s = 1 }},
            {{ at_s = 1, kind = "node-drained", node = 1, for_s = 1 }},
            {{ at_s = 1, kind = "model-removed", model = "a" }},
        ]"#
    );
    let scenario = parse(&text).unwrap();
    assert_eq!(scenario.max_batch_wait, Duration::from_millis(20));
    let device = &scenario.problem.devices[1];
    assert_eq!(
        (device.multiprocessors, device.cost_per_hour),
        (Some(40), Some(3.06))
    );
    let workload = &scenario.workloads[0];
    assert_eq!(
        (workload.requests, workload.latency_scale),
        (Some(4000), 1.22)
    );
    assert_eq!(
        rates(workload, &[0, 9, 10, 19, 20, 30, 35, 40, 99]),
        [400.0, 400.0, 800.0, 800.0, 0.0, 0.0, 300.0, 600.0, 600.0]
    );
    assert_eq!(
        scenario.problem.models[0].load_time,
        Duration::from_millis(600)
    );
    assert!((scenario.problem.network.bytes_per_second - 1e9).abs() < 1e-9);
    assert_eq!(scenario.simulation.links, Links::Queue);
    assert_eq!(scenario.simulation.arrivals, Arrivals::Gamma(2.0));
    let kinds: Vec<FaultKind> = scenario
        .simulation
        .faults
        .iter()
        .map(|fault| fault.kind)
        .collect();
    let expected = [
        FaultKind::WorkerDies(DeviceIndex(2)),
        FaultKind::SlowWorker(DeviceIndex(0), 2.5),
        FaultKind::NetworkDelay(Duration::from_millis(5)),
        FaultKind::NodeLost(1),
        FaultKind::AgentDies(0),
        FaultKind::GatewayDies,
        FaultKind::NodeDrained(1),
        FaultKind::ModelRemoved(ModelIndex(0)),
    ];
    // The clients of a removed model have the time of its SLO.
    assert_eq!(
        scenario.simulation.faults[7].duration,
        scenario.problem.models[0].slo
    );
    assert_eq!(kinds, expected);
}

#[test]
fn a_problem_has_the_conditions_of_the_simulation_but_not_its_extra_slowdown() {
    let with = |more: &str| {
        let simulation = format!(
            "{HEAD}{MODEL}[simulation]\nlatency_scale = 1.22\nclient_overhead_ms = 0.308\nrouter_overhead_ms = 0.2\n\
             return_ms = 0.4\nmps_exponent = 1.5\n{more}"
        );
        parse(&simulation).unwrap().problem
    };
    let problem = with("arrivals = { gamma_cv = 2.0 }");
    let expected = Conditions {
        router_overhead: Duration::from_micros(200),
        return_time: Duration::from_micros(400),
        client_overhead: Duration::from_micros(308),
        burstiness: 2.0,
        mps_exponent: 1.5,
        max_batch_wait: Duration::from_millis(100),
    };
    assert_eq!(problem.conditions, expected);
    assert_eq!(problem.models[0].latency_scale.to_string(), "1.22");
    assert_eq!(with(""), with("extra_slowdown = 0.6"));
    let plain = parse(&format!("{HEAD}{MODEL}")).unwrap().problem;
    assert_eq!(plain.conditions, Conditions::default());
}

#[test]
fn a_bad_pool_is_refused_with_field_and_range() {
    let unknown = error(&format!("pool = \"on\"\n{HEAD}{MODEL}"));
    assert!(
        unknown.contains("unknown variant `on`, expected `off` or `auto`"),
        "{unknown}"
    );
    let autoscale = "[autoscale]\nkind = \"V100-SXM2-16GB\"\nmin = 1\nmax = 4\nstart_s = 1\n";
    let single = HEAD.replace("gpus_per_node = 2", "gpus_per_node = 1");
    let growing = error(&format!("pool = \"auto\"\n{single}{autoscale}{MODEL}"));
    assert!(growing.starts_with("pool: "), "{growing}");
    let head = HEAD.replace("count = ", "process_mib = -1\ncount = ");
    let negative = error(&format!("{head}{MODEL}"));
    assert!(negative.contains("devices[0].process_mib: "), "{negative}");
}

#[test]
fn bad_scenarios_are_refused_with_field_and_range() {
    let with = |options: &str| format!("{HEAD}{MODEL}[simulation]\n{options}");
    for (text, part) in [
        ("name = 3".to_owned(), "invalid type"),
        (format!("{HEAD}{MODEL}colour = 1"), "unknown field `colour`"),
        (with("colour = 1"), "unknown field `colour`"),
        ("name = \"x\"".to_owned(), "devices: expected at least one"),
        (HEAD.to_owned(), "models: expected 1 to"),
        (format!("{HEAD}{MODEL}{MODEL}"), "a:1 is given twice"),
        (
            format!("{HEAD}{}", MODEL.replace("\"a\"", "\"b\"")),
            "models[0].name: b has no profile",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("400", "-1")),
            "models[0].rate_rps",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("200", "0")),
            "models[0].slo_ms: expected above 0",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("200", "9000")),
            "simulation.window_s: expected at least 9 s, the SLO of models[0], not 8 s",
        ),
        (
            HEAD.replace("V100-SXM2-16GB", "abacus") + MODEL,
            "devices[0].memory_mib: required, because the memory of abacus is not known",
        ),
        (
            HEAD.replace("p.csv", "q.csv") + MODEL,
            "q.csv: no such file",
        ),
        (
            HEAD.replace("p.csv", "empty.csv") + MODEL,
            "empty.csv: line 1: the header has no column device_kind",
        ),
        (with("window_s = 0"), "simulation.window_s"),
        (with("window_s = nan"), "simulation.window_s"),
        (with("warmup_s = -1"), "simulation.warmup_s"),
        (
            with("network_bytes_per_s = 0"),
            "simulation.network_bytes_per_s",
        ),
        (
            with("network_bytes_per_s = 1e-300"),
            "simulation.network_bytes_per_s: expected between 1 and",
        ),
        (
            HEAD.to_owned()
                + &MODEL.replace("payload_bytes = 602112", "payload_bytes = 1099511627777"),
            "models[0].payload_bytes: expected at most 1099511627776, not 1099511627777",
        ),
        (with("links = \"fast\""), "unknown variant `fast`"),
        (with("mps_exponent = -1"), "MPS exponent"),
        (with("arrivals = { gamma_cv = 0.0 }"), "gamma_cv"),
        (String::new(), "missing field `name`"),
        (
            HEAD.replace("count = 3", "count = 0") + MODEL,
            "devices: expected at least one device",
        ),
        (
            HEAD.replace("count = 3", "count = -1") + MODEL,
            "invalid value: integer `-1`",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"worker-dies\", for_s = 1 }]"),
            "faults[0].device: required",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"worker-dies\", device = 3, for_s = 1 }]"),
            "below 3",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"node-lost\", node = 2, for_s = 1 }]"),
            "below 2",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"node-lost\", node = 0, factor = 2, for_s = 1 }]"),
            "factor: not a key",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"gateway-dies\" }]"),
            "faults[0].for_s: required",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"model-removed\", model = \"vgg\" }]"),
            "faults[0].model: no model is named \"vgg\"",
        ),
        (
            with("faults = [{ at_s = 1, kind = \"model-added\", model = \"a\" }]"),
            "behind at least one other",
        ),
    ] {
        let message = error(&text);
        assert!(message.contains(part), "{text}\n{message}\nlacks {part}");
    }
}

/// Two models of a family, and these keys of each.
fn family(first: &str, second: &str) -> String {
    let model = |name: &str, keys: &str| {
        let model = MODEL.replace("\"a\"", &format!("\"{name}\"\nprofile = \"a\""));
        format!("{model}family = \"f\"\n{keys}\n")
    };
    format!("{HEAD}{}{}", model("cheap", first), model("good", second))
}

#[test]
fn the_most_accurate_model_of_a_family_is_asked_first() {
    let scenario = parse(&family("accuracy = 70", "accuracy = 80.5")).unwrap();
    let [of_scenario] = &scenario.families[..] else {
        panic!("one family");
    };
    assert_eq!(of_scenario.name, "f");
    let variants = of_scenario.variants.iter();
    let order: Vec<_> = variants
        .map(|variant| (variant.model.0, variant.accuracy.get()))
        .collect();
    assert_eq!(order, [(1, 80.5), (0, 70.0)]);
}

#[test]
fn models_that_cannot_answer_each_others_requests_are_no_family() {
    for (text, part) in [
        (
            family("accuracy = 70", ""),
            "models[1].accuracy: required for a model of a family",
        ),
        (
            family("accuracy = 101", "accuracy = 70"),
            "models[0].accuracy: expected between 0 and 100 percent, not 101",
        ),
        (
            format!("{HEAD}{MODEL}family = \"f\"\naccuracy = 70"),
            "models[0].family: expected 2 to 16 models of family \"f\", not 1",
        ),
        (
            family("accuracy = 70", "accuracy = 80").replacen("602112", "4096", 1),
            "models[1].payload_bytes: expected 4096, as of models[0] in family \"f\"",
        ),
    ] {
        let message = error(&text);
        assert!(message.contains(part), "{text}\n{message}\nlacks {part}");
    }
}

#[test]
fn bad_steps_of_a_rate_are_refused_with_their_index() {
    for (steps, expected) in [
        (
            "[[2, 1], [1, 1]]",
            "[1][0]: expected a time after 0 and after the previous step",
        ),
        (
            "[[2, 1, 5], [6, 1]]",
            "[1][0]: expected a time after 0 and after the previous step",
        ),
        (
            "[[0, 1]]",
            "[0][0]: expected a time after 0 and after the previous step",
        ),
        (
            "[[-2, 1, 5]]",
            "[0][0]: expected between 0 and 10000000, not -2",
        ),
        (
            "[[2, 1, -5]]",
            "[0][2]: expected between 0 and 10000000, not -5",
        ),
        (
            "[[2, 1, nan]]",
            "[0][2]: expected between 0 and 10000000, not NaN",
        ),
        ("[[2, -1, 5]]", "[0][1]: "),
        ("[[2, inf]]", "[0][1]: "),
        (
            "[[2, 1], [3]]",
            "[1]: expected [from_s, rate_rps] or [from_s, rate_rps, over_s], not 1 numbers",
        ),
    ] {
        let message = error(&format!("{HEAD}{MODEL}rate_steps = {steps}"));
        let expected = format!("models[0].rate_steps{expected}");
        assert!(message.starts_with(&expected), "{steps}: {message}");
    }
    let message = error(&format!("{HEAD}{MODEL}rate_steps = [[2, \"much\"]]"));
    assert!(message.contains("expected f64"), "{message}");
}

#[test]
fn bad_traces_are_refused_with_file_and_line() {
    let with = |options: &str| format!("{HEAD}{MODEL}[simulation]\n{options}");
    for (text, part) in [
        (
            with("arrivals = { trace = \"unsorted.csv\" }"),
            "unsorted.csv: line 3: t_s: 0.25 comes after 0.5",
        ),
        (
            with("arrivals = { trace = \"negative.csv\" }"),
            "line 2: t_s",
        ),
        (
            with("arrivals = { trace = \"stranger.csv\" }"),
            "line 2: model: the scenario has no model b",
        ),
        (with("arrivals = { trace = \"empty.csv\" }"), "no arrivals"),
        (
            with("arrivals = { trace = \"spaced.csv\" }"),
            "spaced.csv: line 5: t_s: expected a number between 0 and 1e7, not \"nan\"",
        ),
        (
            with("arrivals = { trace = \"word.csv\" }"),
            "word.csv: line 2: t_s: expected a number between 0 and 1e7, not \"soon\"",
        ),
        (
            with("arrivals = { trace = \"headless.csv\" }"),
            "headless.csv: line 1: expected the header model,t_s, not \"a,0.5\"",
        ),
        (
            with("arrivals = { trace = \"wide.csv\" }"),
            "wide.csv: line 2: expected 2 columns as in the header, not 3",
        ),
        (
            with("arrivals = { counts = \"sorted.csv\" }"),
            "sorted.csv: line 2: expected a number of requests, not \"0.5\"",
        ),
        (
            with("arrivals = { counts = \"backwards.csv\" }"),
            "backwards.csv: line 3: expected a number of requests, not \"-90\"",
        ),
        (
            with("arrivals = { counts = \"narrow.csv\" }"),
            "narrow.csv: line 2: expected at least 2 columns, the minute and one per model, not 1",
        ),
        (
            with("arrivals = { counts = \"idle.csv\" }"),
            "idle.csv: line 1: column 2: expected at least one request",
        ),
    ] {
        let message = error(&text);
        assert!(message.contains(part), "{text}\n{message}\nlacks {part}");
    }
}

#[test]
fn a_trace_has_the_arrivals_and_counts_have_the_rate_scaled_to_its_mean() {
    let with = |arrivals: &str| {
        parse(&format!(
            "{HEAD}{MODEL}[simulation]\narrivals = {{ {arrivals} }}"
        ))
        .unwrap()
    };
    let times = [500, 500, 2000]
        .map(|ms| Time::ZERO + Duration::from_millis(ms))
        .to_vec();
    assert_eq!(
        with("trace = \"sorted.csv\"").simulation.arrivals,
        Arrivals::Trace(vec![times])
    );
    let scenario = with("counts = \"minutes.csv\"");
    assert_eq!(scenario.simulation.arrivals, Arrivals::Poisson);
    assert_eq!(
        rates(&scenario.workloads[0], &[0, 59, 60, 600]),
        [200.0, 200.0, 600.0, 600.0]
    );
}

/// A group of devices on nodes of their own, and an autoscaler.
fn autoscaled(count: usize, autoscale: &str) -> String {
    let group = format!("count = {count}\ngpus_per_node = 1\n[autoscale]\n{autoscale}\n");
    let head = HEAD.replace("count = 3\ngpus_per_node = 2\n", &group);
    format!("{head}{MODEL}")
}

const AUTOSCALE: &str = "kind = \"V100-SXM2-16GB\"\nmin = 2\nmax = 5\nstart_s = 60";

#[test]
fn the_devices_of_an_autoscaler_are_added_behind_those_of_the_start() {
    let scenario = parse(&autoscaled(3, AUTOSCALE)).unwrap();
    let autoscale = scenario.autoscale.clone().unwrap();
    assert_eq!((autoscale.min, autoscale.max), (2, 5));
    assert_eq!(autoscale.node_start, Duration::from_mins(1));
    assert_eq!(autoscale.devices_at_start, 3);
    let nodes = |problem: &Problem| -> Vec<String> {
        let nodes = problem.devices.iter().map(|device| &device.node);
        nodes.map(ToString::to_string).collect()
    };
    let all = ["node0", "node1", "node2", "node3", "node4"];
    assert_eq!(nodes(&scenario.problem), all);
    assert_eq!(nodes(&scenario.problem_at_start()), all[..3]);
    let without = parse(&format!("{HEAD}{MODEL}")).unwrap();
    assert_eq!(without.autoscale, None);
    assert_eq!(
        nodes(&without.problem_at_start()),
        ["node0", "node0", "node1"]
    );
}

#[test]
fn bad_autoscalers_are_refused_with_field_and_limit() {
    let replaced = |from: &str, to: &str| AUTOSCALE.replace(from, to);
    for (count, autoscale, expected) in [
        (
            3,
            replaced("V100-SXM2-16GB", "A100"),
            "autoscale.kind: expected the kind of exactly one group of devices, not A100",
        ),
        (
            3,
            replaced("min = 2", "min = 0"),
            "autoscale.min: expected at least 1",
        ),
        (
            3,
            replaced("max = 5", "max = 1"),
            "autoscale.max: expected 2 (min) to 100000, not 1",
        ),
        (
            3,
            replaced("max = 5", "max = 100001"),
            "autoscale.max: expected 2 (min) to 100000, not 100001",
        ),
        (
            1,
            AUTOSCALE.to_owned(),
            "devices[0].count: expected 2 to 5 devices (autoscale.min to max), not 1",
        ),
        (
            6,
            AUTOSCALE.to_owned(),
            "devices[0].count: expected 2 to 5 devices (autoscale.min to max), not 6",
        ),
        (
            3,
            replaced("start_s = 60", "start_s = -1"),
            "autoscale.start_s: expected between 0 and 10000000, not -1",
        ),
    ] {
        assert_eq!(error(&autoscaled(count, &autoscale)), expected);
    }
    let shared_node = autoscaled(3, AUTOSCALE).replace("gpus_per_node = 1", "gpus_per_node = 3");
    assert_eq!(
        error(&shared_node),
        "devices[0].gpus_per_node: expected 1, because [autoscale] adds and removes nodes of one device"
    );
    let unknown = autoscaled(3, &format!("{AUTOSCALE}\nmost = 3"));
    assert!(error(&unknown).contains("unknown field `most`"));
}
