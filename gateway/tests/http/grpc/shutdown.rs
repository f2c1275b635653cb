//! The end of the listener.

use packhorse_gateway::serve::ConnectionLimits;
use tokio::{
    io::AsyncReadExt as _,
    time::{Duration, Instant},
};

use crate::support::{
    grpc::{GrpcClient, RawConnection, STREAM, UNAVAILABLE, frame},
    inference_gateway::{CONNECTIONS, InferenceGateway},
    within,
};

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

#[tokio::test]
async fn silent_streams_end_at_once() {
    let gateway = InferenceGateway::with_computing_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let mut reflection = client.begin(REFLECTION, &[]);
    // The list of all services.
    reflection.send(&frame(0, b"\x3a\x00"));
    assert!(reflection.next().await.is_some());
    let stream = client.begin(STREAM, &[]);
    let grace = Instant::now() + Duration::from_mins(1);
    let drained = async { within("the end", listener.drain(grace)).await };
    let ends = async {
        for mut call in [reflection, stream] {
            assert_eq!(call.code().await, UNAVAILABLE);
        }
    };
    let (drained, ()) = tokio::join!(drained, ends);
    assert!(drained);
}

#[tokio::test]
async fn a_client_that_answers_no_ping_does_not_delay_the_end() {
    let gateway = InferenceGateway::with_computing_double().await;
    // No other limit ends the connection.
    let limits = ConnectionLimits {
        head_timeout: Duration::from_mins(1),
        idle_timeout: Duration::from_mins(1),
        ..CONNECTIONS
    };
    let listener = gateway.listen_for_grpc_within(limits).await;
    let (mut read, _write) = RawConnection::open(listener.address()).await.split();
    // Its settings have come, so that it is a connection by now.
    within("the settings", read.read_exact(&mut [0; 9]))
        .await
        .unwrap();
    let grace = Instant::now() + Duration::from_mins(1);
    assert!(within("the end", listener.drain(grace)).await);
}
