//! The fields of a message come in any order.

use packhorse_grpc::messages::inference::{ModelInferRequest, ModelInferResponse};
use prost::Message as _;

use crate::support::{
    grpc::{GrpcClient, INFER, INVALID_ARGUMENT, frame, infer_request},
    inference_gateway::InferenceGateway,
};

#[tokio::test]
async fn name_and_version_are_taken_wherever_they_stand() {
    let gateway = InferenceGateway::with_computing_double().await;
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    let empty = ModelInferRequest::default();
    let name = ModelInferRequest {
        model_name: "double".to_owned(),
        ..empty.clone()
    };
    let version = ModelInferRequest {
        model_version: "1".to_owned(),
        ..empty.clone()
    };
    let id = ModelInferRequest {
        id: "a".to_owned(),
        ..empty.clone()
    };
    let tensors = infer_request("", [1, 2], 1.5);
    let [name, version, id, tensors] =
        [name, version, id, tensors].map(|part| part.encode_to_vec());
    for order in [
        [&name, &id, &version, &tensors],
        [&version, &id, &name, &tensors],
        [&id, &name, &tensors, &version],
        [&tensors, &version, &id, &name],
        [&tensors, &name, &id, &version],
    ] {
        let message: Vec<u8> = order.into_iter().flatten().copied().collect();
        let mut call = client.begin(INFER, &[]);
        call.send(&frame(0, &message));
        call.finish();
        let answer = match call.next().await {
            Some(answer) => ModelInferResponse::decode(answer).unwrap(),
            None => panic!("{:?}", call.status().await),
        };
        assert_eq!((&*answer.id, &*answer.model_version), ("a", "1"));
        assert_eq!(answer.raw_output_contents[0], 3_f32.to_le_bytes().repeat(2));
    }
    // The version that comes later is the one that counts.
    let other = ModelInferRequest {
        model_version: "7".to_owned(),
        ..empty
    };
    let message = [name.clone(), id, other.encode_to_vec(), tensors.clone()].concat();
    assert_eq!(client.code(INFER, &[], &message).await, "5");
    let twice = [
        name,
        tensors,
        infer_request("other", [1, 2], 1.0).encode_to_vec(),
    ]
    .concat();
    assert_eq!(client.code(INFER, &[], &twice).await, INVALID_ARGUMENT);
}
