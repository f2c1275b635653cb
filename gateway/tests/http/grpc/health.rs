//! The health service.

use packhorse_grpc::messages::health::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
};
use prost::Message as _;

use crate::support::{
    gateway::Gateway,
    grpc::{Call, GrpcClient, UNAVAILABLE, frame},
    within,
};

const WATCH: &str = "/grpc.health.v1.Health/Watch";

async fn told(call: &mut Call) -> ServingStatus {
    let message = call.next().await.expect("another state");
    HealthCheckResponse::decode(message).unwrap().status()
}

#[tokio::test]
async fn whoever_watches_is_told_the_state_and_its_end_without_a_key() {
    let gateway = Gateway::with_flags(&["--inference-keys=required"]).await;
    let address = gateway.app.grpc_address().unwrap();
    let client = GrpcClient::connect(address).await;
    let watch = |service: &str| {
        let mut call = client.begin(WATCH, &[]);
        let asked = HealthCheckRequest {
            service: service.to_owned(),
        };
        call.send(&frame(0, &asked.encode_to_vec()));
        call.finish();
        call
    };
    let mut all = watch("");
    let mut one = watch("inference.GRPCInferenceService");
    let mut unknown = watch("abc");
    // It may still be starting.
    let serving = async |call: &mut Call| {
        while told(call).await != ServingStatus::Serving {}
    };
    within("the state", serving(&mut all)).await;
    within("the state", serving(&mut one)).await;
    assert_eq!(told(&mut unknown).await, ServingStatus::ServiceUnknown);
    let ends = async {
        assert_eq!(told(&mut all).await, ServingStatus::NotServing);
        assert_eq!(all.code().await, UNAVAILABLE);
    };
    tokio::join!(within("the end", gateway.app.shutdown()), ends);
}
