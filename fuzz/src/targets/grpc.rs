//! Messages of gRPC with inference requests.

use packhorse_cluster::Datatype;
use packhorse_grpc::{
    Beginning, Layout, Prefix, beginning, messages::inference::ModelInferRequest, names_region,
    read_request,
};
use packhorse_protocol::{InferRequest, Limits, NoRegions};
use prost::{Message as _, bytes::Bytes};

use super::http::program;

/// A message, as it is within its frame.
pub(crate) fn infer(message: &[u8]) {
    if let Some(prefix) = message.first_chunk() {
        let read = Prefix::read(*prefix);
        assert!(read.is_ok_and(|read| read.bytes() == *prefix) || prefix[0] > 1);
    }
    // What is known of the beginning stays so when more comes.
    let known = (0..message.len().min(64)).map(|length| beginning(&message[..length], false));
    let known = known.filter(|known| matches!(known, Beginning::Model { .. }));
    let known: Vec<Beginning<'_>> = known.collect();
    assert!(known.windows(2).all(|pair| pair[0] == pair[1]), "{known:?}");
    let limits = Limits::default();
    let layout = Layout::of(message, &limits);
    let Ok(memory) = layout.and_then(|_| Layout::decoding_memory(message)) else {
        return;
    };
    let bytes = Bytes::copy_from_slice(message);
    let Ok(request) = ModelInferRequest::decode(bytes) else {
        return;
    };
    assert!(
        kept_bytes(&request) as u64 <= memory,
        "{memory} bytes: {request:?}"
    );
    assert!(request.inputs.len() <= limits.tensors);
    let _ = names_region(&request);
    let Ok(message) = read_request(request, &limits, &mut NoRegions) else {
        return;
    };
    for datatype in Datatype::ALL {
        for max_batch_size in [0, 8] {
            let program = program(datatype, max_batch_size);
            if let Ok(request) = InferRequest::check(message.clone(), &program) {
                assert!((1..=program.rows_limit()).contains(&request.rows));
                let (shape, spec) = (request.inputs[0].shape(), &program.inputs[0]);
                assert!(spec.accepts(shape) && shape.dims()[1] <= 1000, "{shape}");
            }
        }
    }
}

/// Returns the bytes of what a request's lists and texts have become, without the entries of its tables.
fn kept_bytes(request: &ModelInferRequest) -> usize {
    let texts = request.model_name.len() + request.model_version.len() + request.id.len();
    let inputs = request.inputs.iter().map(|input| {
        let contents = input.contents.as_ref().map_or(0, |contents| {
            let numbers = size_of_val(contents.bool_contents.as_slice())
                + size_of_val(contents.int_contents.as_slice())
                + size_of_val(contents.int64_contents.as_slice())
                + size_of_val(contents.uint_contents.as_slice())
                + size_of_val(contents.uint64_contents.as_slice())
                + size_of_val(contents.fp32_contents.as_slice())
                + size_of_val(contents.fp64_contents.as_slice());
            let texts = contents.bytes_contents.iter().map(Bytes::len);
            let strings = size_of_val(contents.bytes_contents.as_slice());
            numbers + strings + texts.sum::<usize>()
        });
        let shape = size_of_val(input.shape.as_slice());
        size_of_val(input) + input.name.len() + input.datatype.len() + shape + contents
    });
    let outputs = request.outputs.iter();
    let outputs = outputs.map(|output| size_of_val(output) + output.name.len());
    texts + inputs.sum::<usize>() + outputs.sum::<usize>()
}
