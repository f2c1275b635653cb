//! The task that sends traces to a receiver over OTLP/HTTP.

use std::{str::FromStr, sync::atomic::Ordering::Relaxed, time::Duration};

use packhorse_tls::{Authorities, AuthoritiesError};
use prost::Message as _;
use reqwest::{
    Client, Url,
    header::{CONTENT_TYPE, HeaderValue},
    redirect::Policy,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    otlp::{
        ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans, Span,
        attribute,
    },
    sample_ratio::SampleRatio,
    spans::SpanMaker,
    tracer::{EndedTrace, Tracer},
};
use crate::{tasks::Tasks, telemetry::Telemetry};

/// The time for which traces are collected before they are sent together.
const COLLECT: Duration = Duration::from_secs(1);
/// The number of traces that are sent together: about 0.7 MB.
const TOGETHER: usize = 512;
/// The time within which the receiver must answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The time for the last traces when the gateway stops.
const LAST: Duration = Duration::from_secs(1);
/// The shortest time between two lines of the log about failed exports.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The address of a receiver of OTLP/HTTP, to which the path `/v1/traces` is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Url);

/// A text that is no address of a receiver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an http URL such as http://127.0.0.1:4318")]
pub struct EndpointError;

impl FromStr for OtlpEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let mut url = Url::parse(text).map_err(|_| EndpointError)?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(EndpointError);
        }
        let mut path = url.path_segments_mut().map_err(|()| EndpointError)?;
        path.pop_if_empty().extend(["v1", "traces"]);
        drop(path);
        Ok(Self(url))
    }
}

/// The exporter of traces.
#[derive(Debug)]
pub struct TraceExporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The settings of the export.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The receiver.
    pub endpoint: OtlpEndpoint,
    /// The authorities that may sign the receiver's certificate.
    pub authorities: Authorities,
    /// The gateway's name in its traces.
    pub service_name: String,
    /// The part of the requests within their SLO that are traced.
    pub ratio: SampleRatio,
}

/// The queue of an exporter that is not yet started.
#[derive(Debug)]
pub struct TraceQueue {
    settings: TraceSettings,
    tracer: Tracer,
    ended: mpsc::Receiver<EndedTrace>,
}

impl TraceQueue {
    /// Creates an empty queue.
    pub fn new(settings: &TraceSettings) -> Self {
        let (tracer, ended) = Tracer::new(settings.ratio);
        Self {
            settings: settings.clone(),
            tracer,
            ended,
        }
    }

    /// Returns the handle by which requests get into the queue.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }
}

/// Returns a client for receivers of this scheme. It goes where the operator says, and nowhere that a receiver says.
fn client(authorities: &Authorities, scheme: &str) -> Result<Client, AuthoritiesError> {
    let client = Client::builder()
        .tls_backend_preconfigured(authorities.client_config(scheme)?)
        .no_proxy()
        .redirect(Policy::none())
        .timeout(ANSWER_TIME)
        .user_agent(concat!("packhorse-gateway/", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(client.expect("a client with its TLS depends on nothing that can fail"))
}

impl TraceExporter {
    /// Starts to export the traces of a queue.
    ///
    /// # Errors
    /// If the receiver is asked over TLS, and the file with its authorities cannot be used, or there is none and the machine trusts none.
    pub fn start(
        queue: TraceQueue,
        telemetry: Telemetry,
        tasks: &Tasks,
    ) -> Result<Self, AuthoritiesError> {
        let scheme = queue.settings.endpoint.0.scheme();
        let client = client(&queue.settings.authorities, scheme)?;
        let TraceQueue {
            settings,
            tracer,
            ended,
        } = queue;
        let task = ExportTask {
            client,
            url: settings.endpoint.0,
            service: settings.service_name,
            maker: SpanMaker::new(telemetry.clock()),
            telemetry,
            tracer,
            ended,
            logged: None,
        };
        let (stop, stopped) = oneshot::channel();
        let task = tasks.spawn("trace exporter", task.run(stopped));
        Ok(Self { stop, task })
    }

    /// Sends what waits, within a second, and ends.
    pub async fn shutdown(self) {
        // The task has ended by a panic if it does not listen.
        let _ = self.stop.send(());
        let mut task = self.task;
        if timeout(LAST, &mut task).await.is_err() {
            task.abort();
        }
    }
}

struct ExportTask {
    client: Client,
    url: Url,
    service: String,
    telemetry: Telemetry,
    maker: SpanMaker,
    tracer: Tracer,
    ended: mpsc::Receiver<EndedTrace>,
    /// The time of the last line of the log about a failure.
    logged: Option<Instant>,
}

/// The reason why the receiver did not take traces.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the receiver answered {0}")]
    Status(reqwest::StatusCode),
}

impl ExportTask {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut traces = Vec::with_capacity(TOGETHER);
        loop {
            let is_last = self.collect(&mut traces, &mut stopped).await;
            if !traces.is_empty() {
                self.export(&traces).await;
                traces.clear();
            }
            if is_last && self.ended.is_empty() {
                return;
            }
        }
    }

    /// Collects traces from the first one on. Returns true once the gateway stops.
    async fn collect(
        &mut self,
        traces: &mut Vec<EndedTrace>,
        stopped: &mut oneshot::Receiver<()>,
    ) -> bool {
        let mut until = None;
        while traces.len() < TOGETHER {
            let room = TOGETHER - traces.len();
            tokio::select! {
                biased;
                // A receiver that was polled to its end must not be polled again.
                _ = &mut *stopped, if !stopped.is_terminated() => {}
                _ = self.ended.recv_many(traces, room), if !stopped.is_terminated() => {
                    until.get_or_insert_with(|| Instant::now() + COLLECT);
                }
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return false,
            }
            if stopped.is_terminated() {
                while traces.len() < TOGETHER
                    && let Ok(ended) = self.ended.try_recv()
                {
                    traces.push(ended);
                }
                return true;
            }
        }
        false
    }

    async fn export(&mut self, traces: &[EndedTrace]) {
        let names = self.telemetry.requests().names();
        let mut spans = Vec::with_capacity(8 * traces.len());
        for ended in traces {
            self.maker.add(ended, &names, &mut spans);
        }
        let counts = &self.tracer.counts;
        let count = traces.len() as u64;
        match self.send(spans).await {
            Ok(()) => {
                counts.exported.fetch_add(count, Relaxed);
            }
            Err(error) => {
                counts.failed.fetch_add(count, Relaxed);
                let now = Instant::now();
                if self.logged.is_none_or(|logged| now >= logged + LOG_EVERY) {
                    self.logged = Some(now);
                    tracing::warn!(
                        endpoint = %self.url, traces = count, error = &error as &dyn std::error::Error,
                        "traces are dropped: the receiver of OTLP does not take them"
                    );
                }
            }
        }
    }

    async fn send(&self, spans: Vec<Span>) -> Result<(), ExportError> {
        let version = env!("CARGO_PKG_VERSION");
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource {
                    attributes: vec![
                        attribute("service.name", self.service.as_str()),
                        attribute("service.version", version),
                    ],
                }),
                scope_spans: vec![ScopeSpans {
                    scope: Some(InstrumentationScope {
                        name: "packhorse".to_owned(),
                        version: version.to_owned(),
                    }),
                    spans,
                }],
            }],
        };
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        let post = self.client.post(self.url.clone());
        let post = post.header(CONTENT_TYPE, protobuf);
        let status = post.body(request.encode_to_vec()).send().await?.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(ExportError::Status(status))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, response::Redirect, routing::post};

    use super::*;

    #[tokio::test]
    async fn a_receiver_sends_traces_nowhere_else() {
        let elsewhere = Router::new()
            .route(
                "/v1/traces",
                post(async || Redirect::temporary("/elsewhere")),
            )
            .route("/elsewhere", post(async || "taken"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, elsewhere).await });
        let client = client(&Authorities::Machine, "http").unwrap();
        let answer = client.post(url).body("spans").send().await.unwrap();
        assert_eq!(answer.status(), 307);
        server.abort();
    }

    #[test]
    fn the_path_is_added_to_an_endpoint() {
        let url = |text: &str| text.parse().map(|OtlpEndpoint(url)| url.to_string());
        for (given, full) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://host:4318/", "http://host:4318/v1/traces"),
            ("https://host/otlp/", "https://host/otlp/v1/traces"),
        ] {
            assert_eq!(url(given).as_deref(), Ok(full));
        }
        for bad in ["", "127.0.0.1:4318", "host:4318", "ftp://host", "http://"] {
            assert_eq!(url(bad), Err(EndpointError), "{bad}");
        }
    }
}
