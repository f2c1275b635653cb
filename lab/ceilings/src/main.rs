//! `packhorse-ceilings`: programs that do less than Packhorse on the same path, measured beside it by `cargo xtask bench data-plane`.
//!
//! * `sink` reads a request's body and answers: no gateway can be faster than its HTTP server.
//! * `front` and `worker` are the plainest gateway with a worker in another process: the body goes over one TCP connection, whole, and a
//!   short answer comes back. With `--kept` both sides keep the memory that bodies are read to, with `--sum` the worker adds their numbers up.
//! * `stream` writes large messages to a thread that reads them: what a TCP connection of this machine carries.
//!
//! * `grpc-front` is `front` over gRPC, with tonic; `grpc-load` is a closed loop of clients of tonic.
//!
//! The servers answer `GET /v2/models/NAME` and inference requests well enough for `packhorse-lab bench`; they compute nothing.
#![expect(clippy::print_stdout, reason = "the programs report to the benchmark")]

mod answer;
mod front;
mod grpc_front;
mod grpc_load;
mod sink;
mod stream;
mod worker;

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use axum::Router;
use clap::Parser;
use tokio::net::TcpListener;

/// The largest body, in bytes: the default of the gateway.
const BODY_LIMIT: usize = 256 << 20;

/// Yardsticks for the data plane.
#[derive(Parser)]
enum Arguments {
    /// An HTTP server that reads bodies and answers
    Sink {
        /// Parse JSON bodies into numbers with `serde_json`
        #[arg(long)]
        parse_json: bool,
    },
    /// An HTTP server that passes bodies to a worker over one TCP connection
    Front {
        /// Address of the worker
        #[arg(long, value_name = "ADDRESS")]
        worker: SocketAddr,
        /// Keep the memory of bodies
        #[arg(long)]
        kept: bool,
    },
    /// The worker of `front`
    Worker {
        /// Keep the memory of bodies
        #[arg(long)]
        kept: bool,
        /// Add the numbers of a body up, as the model does that Packhorse serves beside it
        #[arg(long)]
        sum: bool,
    },
    /// A server of gRPC that passes inputs to a worker over one TCP connection
    GrpcFront {
        /// Address of the worker
        #[arg(long, value_name = "ADDRESS")]
        worker: SocketAddr,
    },
    /// Requests over gRPC, each sent when its client has the answer to the one before
    GrpcLoad {
        /// Address of the server
        #[arg(long, value_name = "ADDRESS")]
        server: SocketAddr,
        /// Clients, each with a connection of its own
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        concurrency: u32,
        /// Size of the input
        #[arg(long, value_name = "BYTES")]
        payload_bytes: usize,
        /// Time to ask for
        #[arg(long, value_name = "S")]
        duration: f64,
    },
    /// Messages over one TCP connection of this machine
    Stream {
        /// Size of a message
        #[arg(long, value_name = "BYTES")]
        bytes: usize,
        /// Time to send for
        #[arg(long, value_name = "S", default_value_t = 1.0)]
        seconds: f64,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse() {
        Arguments::Sink { parse_json } => serve(|| async move { Ok(sink::routes(parse_json)) }),
        Arguments::Front { worker, kept } => serve(move || front::routes(worker, kept)),
        Arguments::Worker { kept, sum } => worker::run(kept, sum),
        Arguments::GrpcFront { worker } => block_on(grpc_front::run(worker)),
        Arguments::GrpcLoad {
            server,
            concurrency,
            payload_bytes,
            duration,
        } => {
            let time = Duration::from_secs_f64(duration);
            block_on(grpc_load::run(server, concurrency, payload_bytes, time))
        }
        Arguments::Stream { bytes, seconds } => {
            stream::run(bytes, Duration::from_secs_f64(seconds))
        }
    }
}

fn block_on(run: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(run)
}

/// Serves on a free port, whose address is the first line of the output.
fn serve<F: Future<Output = anyhow::Result<Router>>>(
    routes: impl FnOnce() -> F,
) -> anyhow::Result<()> {
    block_on(async {
        let routes = routes().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        println!("{}", listener.local_addr().context("listen")?);
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            // Without it an answer could wait for an acknowledgement. A socket that is broken already is noticed later.
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, routes).await.context("serve")
    })
}
