//! Floods of frames that ask for nothing.

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{
    grpc::{GrpcClient, INFER, OK, RawConnection, infer_request, raw_frame},
    inference_gateway::InferenceGateway,
    within,
};

const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const UNKNOWN: u8 = 0xee;

#[tokio::test]
async fn a_flood_ends_its_connection_and_no_other() {
    let gateway = InferenceGateway::with_computing_double().await;
    let listener = gateway.listen_for_grpc().await;
    let other = GrpcClient::connect(listener.address()).await;
    let message = infer_request("double", [1, 2], 1.0).encode_to_vec();
    for frame in [
        raw_frame(PING, 0, 0, &[7; 8]),
        // A window that never overflows.
        raw_frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        raw_frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1]),
        raw_frame(SETTINGS, 0, 0, &[]),
        raw_frame(UNKNOWN, 0, 0, &[]),
    ] {
        let (mut read, mut write) = RawConnection::open(listener.address()).await.split();
        let flood = frame.repeat(1000);
        let sending = async {
            // Until nobody takes them any more.
            while write.write_all(&flood).await.is_ok() {}
        };
        let reading = async {
            let mut buffer = vec![0; 64 << 10];
            while read.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        };
        within(
            &format!("the end of a flood of frames {}", frame[3]),
            async {
                tokio::join!(sending, reading);
            },
        )
        .await;
        assert_eq!(other.code(INFER, &[], &message).await, OK);
    }
}

#[tokio::test]
async fn many_calls_of_one_connection_are_no_flood() {
    let gateway = InferenceGateway::with_computing_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let message = infer_request("double", [1, 2], 1.0).encode_to_vec();
    // More than the frames that are allowed at once.
    for _ in 0..50 {
        let calls = (0..100).map(|_| client.code(INFER, &[], &message));
        let codes = futures_util::future::join_all(calls).await;
        assert!(codes.iter().all(|code| code == OK), "{codes:?}");
    }
}
