//! A closed loop over gRPC: so many clients of tonic, each with a connection of its own, ask again as soon as they have their answer.
//!
//! It prints the parts of the report of `packhorse-lab bench --json` that the benchmark reads.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use packhorse_grpc::messages::inference::{
    ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// The call with one request.
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Asks a server for so long, with inputs of so many bytes.
pub(crate) async fn run(
    server: SocketAddr,
    clients: u32,
    bytes: usize,
    time: Duration,
) -> anyhow::Result<()> {
    let elements = i64::try_from(bytes / 4)?;
    let request = ModelInferRequest {
        model_name: "sum".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, elements],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![Bytes::from(vec![0; bytes])],
        ..ModelInferRequest::default()
    };
    let endpoint = Endpoint::from_shared(format!("http://{server}"))?.tcp_nodelay(true);
    let mut channels = Vec::new();
    for _ in 0..clients {
        let connected = endpoint.connect().await;
        channels.push(connected.with_context(|| format!("connect to {server}"))?);
    }
    // What is wrong is told before the load, and the server knows the model.
    ask(&mut Grpc::new(channels[0].clone()), request.clone()).await?;
    let (begin, cpu) = (now(), processor_seconds());
    let mut loops = JoinSet::new();
    for channel in channels {
        loops.spawn(closed_loop(channel, request.clone(), begin + time));
    }
    let mut latencies = Vec::new();
    while let Some(ended) = loops.join_next().await {
        latencies.extend(ended.context("a client has panicked")??);
    }
    let (took, cpu) = (begin.elapsed().as_secs_f64(), processor_seconds() - cpu);
    ensure!(!latencies.is_empty(), "no answer came in time");
    latencies.sort();
    let quantile = |part: f64| {
        let index = (part * latencies.len() as f64) as usize;
        latencies[index.min(latencies.len() - 1)].as_secs_f64() * 1e3
    };
    let none = json!({"p50": 0.0, "p99": 0.0, "max": 0.0});
    let report = json!({
        "requests": {"all": latencies.len(), "answered": latencies.len()},
        "throughput_rps": latencies.len() as f64 / took,
        "latency_ms": {"p50": quantile(0.5), "p99": quantile(0.99), "max": quantile(1.0)},
        "lateness_ms": none, "own_delay_ms": none,
        "stages": [], "client_cpu_s": cpu, "errors": {},
    });
    println!("{report}");
    Ok(())
}

/// Asks until then, and returns the latencies.
async fn closed_loop(
    channel: Channel,
    request: ModelInferRequest,
    until: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut client = Grpc::new(channel);
    let mut latencies = Vec::new();
    while now() < until {
        let sent = now();
        ask(&mut client, request.clone()).await?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}

async fn ask(client: &mut Grpc<Channel>, request: ModelInferRequest) -> anyhow::Result<()> {
    client.ready().await.context("the connection is lost")?;
    let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
    let path = PathAndQuery::from_static(INFER);
    client.unary(Request::new(request), path, codec).await?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a load generator measures how long answers take"
)]
fn now() -> Instant {
    Instant::now()
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
