//! The plainest gateway over gRPC: a server of tonic that passes the input of each request to a worker over one TCP connection, and answers when the
//! worker does.

use std::{
    convert::Infallible,
    net::SocketAddr,
    task::{Context, Poll},
};

use anyhow::Context as _;
use bytes::Bytes;
use packhorse_grpc::messages::inference::{
    ModelInferRequest, ModelInferResponse, model_infer_response::InferOutputTensor,
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
    transport::{Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use crate::{
    BODY_LIMIT,
    front::{Front, Payload},
};

/// The window of a call and of a connection, in bytes. The default of 64 KiB waits for the client once for each tenth of an image.
const WINDOW: u32 = 1 << 20;

/// Serves on a free port, whose address is the first line of the output.
pub(crate) async fn run(worker: SocketAddr) -> anyhow::Result<()> {
    let front = Front::connect(worker).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
    println!("{}", listener.local_addr().context("listen")?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .add_service(Infer(front))
        .serve_with_incoming(incoming)
        .await
        .context("serve")
}

/// The service, of which there is one call.
#[derive(Clone)]
struct Infer(Front);

impl NamedService for Infer {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl Service<http::Request<Body>> for Infer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let front = self.0.clone();
        Box::pin(async move {
            let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(BODY_LIMIT);
            Ok(grpc.unary(ModelInfer(front), request).await)
        })
    }
}

struct ModelInfer(Front);

impl UnaryService<ModelInferRequest> for ModelInfer {
    type Response = ModelInferResponse;
    type Future = BoxFuture<Response<ModelInferResponse>, Status>;

    fn call(&mut self, request: Request<ModelInferRequest>) -> Self::Future {
        let front = self.0.clone();
        Box::pin(async move {
            let input = request.into_inner().raw_input_contents.into_iter().next();
            let input = input.ok_or_else(|| Status::invalid_argument("no raw contents"))?;
            if !front.pass(Payload::Fresh(input)).await {
                return Err(Status::unavailable("the worker has gone"));
            }
            Ok(Response::new(answer()))
        })
    }
}

/// Returns the answer of a model `x → y` whose output is one number.
fn answer() -> ModelInferResponse {
    ModelInferResponse {
        model_name: "sum".to_owned(),
        model_version: "1".to_owned(),
        outputs: vec![InferOutputTensor {
            name: "y".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 1],
            ..InferOutputTensor::default()
        }],
        raw_output_contents: vec![Bytes::from_static(&[0; 4])],
        ..ModelInferResponse::default()
    }
}
