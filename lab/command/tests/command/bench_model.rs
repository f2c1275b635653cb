//! `packhorse-lab bench MODEL`, against a gateway that answers, refuses and fails as it is told.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use packhorse_cluster::Shape;
use packhorse_protocol::{Form, HEADER_LENGTH, InferResponse, Limits, RequestMessage, Tensor};
use serde_json::{Value, json};
use wiremock::{
    Mock, Request, ResponseTemplate,
    matchers::{method, path},
};

use packhorse_stand_in::{Gateway, Ran, model};

/// A gateway with the model `m`, which answers its `i`-th request as `answer` says.
async fn serving(
    answer: impl Fn(u64, &Request, &RequestMessage) -> ResponseTemplate + Send + Sync + 'static,
) -> Gateway {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let metadata = json!({
        "name": "m", "versions": ["1"], "platform": "pytorch_libtorch",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    });
    Mock::given(method("GET"))
        .and(path("/v2/models/m"))
        .respond_with(ResponseTemplate::new(200).set_body_json(metadata))
        .mount(&gateway.server)
        .await;
    let asked = AtomicU64::new(0);
    let respond = move |request: &Request| {
        let length = request.headers.get(HEADER_LENGTH);
        let length = length.map(|length| length.to_str().unwrap().parse().unwrap());
        let message =
            RequestMessage::parse(request.body.clone().into(), length, &Limits::default()).unwrap();
        answer(asked.fetch_add(1, Ordering::Relaxed), request, &message)
    };
    Mock::given(method("POST"))
        .and(path("/v2/models/m/infer"))
        .respond_with(respond)
        .mount(&gateway.server)
        .await;
    gateway
}

fn answered(form: Form) -> ResponseTemplate {
    let shape = Shape::new(&[1, 1]).unwrap();
    let y = Tensor::from_values("y", shape, &[1.0_f32]).unwrap();
    let response = InferResponse {
        model_name: "m".to_owned(),
        model_version: "1".to_owned(),
        id: String::new(),
        variant: None,
        outputs: vec![y.in_form(form)],
    };
    let message = response.encode().unwrap();
    let mut answer = ResponseTemplate::new(200);
    if let Some(length) = message.header_length() {
        answer = answer.insert_header(HEADER_LENGTH, length.to_string());
    }
    let body = message.into_body().to_bytes().to_vec();
    answer.set_body_raw(body, "application/octet-stream")
}

fn refused(status: u16) -> ResponseTemplate {
    ResponseTemplate::new(status)
        .set_body_json(json!({"error": format!("told to answer {status}")}))
}

fn bench(gateway: &Gateway, options: &[&str]) -> Ran {
    let short = ["bench", "m", "--duration", "0.3", "--warm-up", "0.05"];
    gateway.run(&[&short, options].concat())
}

fn count(report: &Value, end: &str) -> u64 {
    report["requests"][end].as_u64().unwrap()
}

#[tokio::test]
async fn requests_are_counted_by_their_end() {
    let gateway = serving(|i, _, request| {
        assert_eq!(request.inputs[0].shape().dims(), [2, 3]);
        assert_eq!(request.inputs[0].form(), Form::Binary);
        assert_eq!(request.timeout, Some(Duration::from_millis(250)));
        // The first is that which must succeed.
        match i % 10 {
            1 => refused(503).insert_header("retry-after", "1"),
            2 => refused(429),
            3 => refused(504),
            4 => refused(503),
            5 => refused(500),
            _ => answered(Form::Binary),
        }
    })
    .await;
    let options = [
        "--concurrency",
        "4",
        "--batch",
        "2",
        "--deadline",
        "250",
        "--json",
    ];
    let report = bench(&gateway, &options).json();
    assert_eq!(report["concurrency"], 4);
    assert_eq!(
        (&report["rate_rps"], &report["rows"]),
        (&Value::Null, &json!(2))
    );
    // The deadline stands for the SLO, which the admin API does not tell here.
    assert_eq!(report["slo_ms"], 250.0);
    let ends = ["answered", "refused", "expired", "failed", "lost"];
    let sum: u64 = ends.iter().map(|end| count(&report, end)).sum();
    assert_eq!(count(&report, "all"), sum);
    for end in ends {
        assert!(count(&report, end) > 0, "{end}: {report}");
    }
    let errors: Vec<&String> = report["errors"].as_object().unwrap().keys().collect();
    assert_eq!(
        errors,
        [429, 500, 503, 504]
            .map(|status| format!("{status}: told to answer {status}"))
            .iter()
            .collect::<Vec<_>>()
    );
    assert!(report["latency_ms"]["p50"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn an_open_loop_counts_latency_from_the_due_time() {
    // One connection and answers of 20 ms: of a hundred requests in half a second, most wait for it.
    let slow = Duration::from_millis(20);
    let gateway = serving(move |_, _, _| answered(Form::Binary).set_delay(slow)).await;
    gateway
        .answers("GET", "/v1/models/m", 200, model("m", "ready", None))
        .await;
    let options = [
        "--rate",
        "200",
        "--arrivals",
        "uniform",
        "--connections",
        "1",
        "--duration",
        "0.5",
        "--warm-up",
        "0",
        "--json",
    ];
    let report = gateway
        .run(&[&["bench", "m"][..], &options].concat())
        .json();
    // At 5, 10, …, 495 ms; the next is due when the time is over.
    assert_eq!(count(&report, "all"), 99);
    assert_eq!(count(&report, "answered"), 99);
    // The model's SLO is 200 ms; the last requests wait for well over a second.
    assert_eq!(report["slo_ms"], 200.0);
    assert!(count(&report, "within_slo") < 40, "{report}");
    let ms = |times: &str, part: &str| report[times][part].as_f64().unwrap();
    assert!(ms("latency_ms", "max") > 1000.0, "{report}");
    assert!(ms("lateness_ms", "max") > 1000.0, "{report}");
    assert!(
        ms("latency_ms", "p99") >= ms("lateness_ms", "p99"),
        "{report}"
    );
    let goodput = report["goodput_rps"].as_f64().unwrap();
    assert!(goodput < report["throughput_rps"].as_f64().unwrap() * 4.0);
}

#[tokio::test]
async fn inputs_are_files_tensors_can_be_json_and_stages_are_asked_for() {
    let gateway = serving(|_, request, message| {
        let x = &message.inputs[0];
        assert_eq!(
            (x.form(), message.output_form),
            (Form::Json, Some(Form::Json))
        );
        assert_eq!(x.values::<f32>().unwrap(), [0.5, -1.0, 2.0]);
        let answer = answered(Form::Json);
        if !request.headers.contains_key("x-packhorse-stages") {
            // The request before the load.
            return answer;
        }
        answer.set_delay(Duration::from_millis(5)).insert_header(
            "server-timing",
            "compute;dur=2.5, queue;dur=0.5, total;dur=3.5",
        )
    })
    .await;
    let bytes: Vec<u8> = [0.5_f32, -1.0, 2.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    gateway.file("x.raw", bytes);
    let options = [
        "--input",
        "x=x.raw",
        "--json-tensors",
        "--stages",
        "--plot",
        "load.svg",
    ];
    let report = bench(&gateway, &[&options[..], &["--json"]].concat()).json();
    let stages = report["stages"].as_array().unwrap();
    let mean = |name: &str| {
        let stage = stages.iter().find(|stage| stage["stage"] == name);
        stage.unwrap()["mean_ms"].as_f64().unwrap()
    };
    assert_eq!(
        (mean("compute"), mean("queue"), mean("answer")),
        (2.5, 0.5, 0.5)
    );
    let sum: f64 = stages
        .iter()
        .map(|stage| stage["mean_ms"].as_f64().unwrap())
        .sum();
    let latency = report["latency_ms"]["mean"].as_f64().unwrap();
    assert!((sum / latency - 1.0).abs() < 0.01, "{sum} {latency}");
    let text = bench(&gateway, &options);
    for expected in [
        "closed loop, 1 at once",
        "STAGE, MS",
        "worker_queue",
        "no SLO",
    ] {
        assert!(text.text().contains(expected), "{text:?}");
    }
    let figure = fs::read_to_string(gateway.path("load.svg")).unwrap();
    assert!(figure.contains("slowest 1 %") && figure.contains("compute"));
}

#[tokio::test]
async fn a_search_prints_its_steps_and_needs_an_slo() {
    let gateway = serving(|_, _, _| answered(Form::Binary)).await;
    let ran = bench(&gateway, &["--find-capacity"]);
    assert!(
        ran.error().contains("--find-capacity needs the SLO"),
        "{ran:?}"
    );
    // A rate at which no stand-in answers, and an SLO that none misses at the lowest.
    let options = [
        "--find-capacity",
        "--rate",
        "64",
        "--slo",
        "0.001",
        "--duration",
        "0.2",
        "--plot",
        "capacity.svg",
        "--json",
    ];
    let ran = gateway.run(&[&["bench", "m", "--warm-up", "0"][..], &options].concat());
    let report = ran.json();
    assert_eq!(report["capacity_rps"], Value::Null);
    let steps = report["steps"].as_array().unwrap();
    let rates: Vec<f64> = steps
        .iter()
        .map(|step| step["rate_rps"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0]);
    assert!(steps.iter().all(|step| step["passed"] == false));
    assert_eq!(
        ran.stderr
            .lines()
            .filter(|line| line.ends_with(": failed"))
            .count(),
        7
    );
    assert!(gateway.path("capacity.svg").exists());
}

#[tokio::test]
async fn what_cannot_be_sent_is_named() {
    let gateway = serving(|_, _, _| refused(400)).await;
    let ran = bench(&gateway, &[]);
    assert!(
        ran.error()
            .contains("the first request: told to answer 400"),
        "{ran:?}"
    );
    let ran = bench(&gateway, &["--input", "z=z.raw"]);
    assert!(ran.error().contains("its inputs are x"), "{ran:?}");
    for usage in [
        &["bench"][..],
        &["bench", "m", "--scenario", "s.toml"],
        &["bench", "m", "--rate", "0"],
        &["bench", "m", "--rate", "5", "--concurrency", "2"],
        &["bench", "m", "--duration", "nan"],
        &["bench", "--scenario", "s.toml", "--stages"],
        &["bench", "m", "--retry"],
    ] {
        assert_eq!(gateway.run_bare(usage).code, 2, "{usage:?}");
    }
}
