//! Encoded messages decode to the same value: every datatype and rank, JSON, binary and both, in any chunks.

use std::time::Duration;

use crate::{
    ByteRope, Form, InferResponse, Limits, Message, NonFinite, OutputRequest, RegionRange,
    RequestMessage, Tensor,
};
use packhorse_cluster::{Datatype, Shape};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::shape;

/// Returns true if JSON can represent the number with these bytes.
fn has_json_form(datatype: Datatype, bytes: &[u8]) -> bool {
    match datatype {
        Datatype::Fp16 | Datatype::Bf16 => false,
        Datatype::Fp32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_finite(),
        Datatype::Fp64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_finite(),
        _ => true,
    }
}

fn number_tensor(name: String, datatype: Datatype, shape: Shape) -> impl Strategy<Value = Tensor> {
    let width = datatype.width().unwrap();
    let size = shape.elements() as usize * width;
    (vec(any::<u8>(), size), any::<bool>()).prop_map(move |(mut bytes, json)| {
        if datatype == Datatype::Bool {
            for byte in &mut bytes {
                *byte &= 1;
            }
        }
        let json = json
            && bytes
                .chunks_exact(width)
                .all(|element| has_json_form(datatype, element));
        let tensor = Tensor::new(name.clone(), datatype, shape.clone(), bytes.into()).unwrap();
        tensor.in_form(
            if json && !matches!(datatype, Datatype::Fp16 | Datatype::Bf16) {
                Form::Json
            } else {
                Form::Binary
            },
        )
    })
}

fn string_tensor(name: String, shape: Shape) -> impl Strategy<Value = Tensor> {
    let elements = shape.elements() as usize;
    let text = (vec(".{0,8}", elements), any::<bool>()).prop_map(|(texts, json)| {
        (
            texts.into_iter().map(String::into_bytes).collect(),
            if json { Form::Json } else { Form::Binary },
        )
    });
    let bytes = vec(vec(any::<u8>(), 0..8), elements)
        .prop_map(|values: Vec<Vec<u8>>| (values, Form::Binary));
    prop_oneof![text, bytes].prop_map(move |(values, form): (Vec<Vec<u8>>, Form)| {
        Tensor::from_byte_strings(&name, shape.clone(), &values)
            .unwrap()
            .in_form(form)
    })
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let dims = vec(0_i64..4, 0..5);
    (".{1,12}", select(Datatype::ALL.to_vec()), dims).prop_flat_map(|(name, datatype, dims)| {
        let shape = shape(&dims);
        match datatype {
            Datatype::Bytes => string_tensor(name, shape).boxed(),
            _ => number_tensor(name, datatype, shape).boxed(),
        }
    })
}

fn form() -> impl Strategy<Value = Option<Form>> {
    option::of(select(vec![Form::Json, Form::Binary]))
}

fn range() -> impl Strategy<Value = Option<RegionRange>> {
    let range = (".{0,12}", any::<u64>(), any::<u64>());
    option::of(range.prop_map(|(region, offset, bytes)| RegionRange {
        region,
        offset,
        bytes,
    }))
}

fn output() -> impl Strategy<Value = OutputRequest> {
    let output = (".{1,12}", form(), range());
    output.prop_map(|(name, form, range)| OutputRequest {
        classes: form.map(|_| 3),
        name,
        form,
        range,
    })
}

/// Returns the body in chunks of these sizes, repeated.
fn split(message: Message, sizes: &[usize]) -> ByteRope {
    let mut body = message.into_body();
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if body.is_empty() {
            break;
        }
        pieces.push(body.split_to((*size).min(body.len())).to_bytes());
    }
    pieces.into_iter().collect()
}

proptest! {
    #[test]
    fn requests_are_decoded_as_encoded(
        id in ".{0,40}",
        inputs in vec(tensor(), 0..5),
        outputs in vec(output(), 0..4),
        output_form in form(),
        timeout in option::of((1_u64..).prop_map(Duration::from_micros)),
        priority in any::<u64>(),
        sizes in vec(1_usize..3000, 1..6),
    ) {
        let non_finite = NonFinite::Error;
        let request = RequestMessage { id, inputs, outputs, output_form, non_finite, timeout, priority };
        let message = request.encode().unwrap();
        let header_length = message.header_length();
        let read = RequestMessage::parse(split(message, &sizes), header_length, &Limits::default());
        prop_assert_eq!(read, Ok(request));
    }

    #[test]
    fn responses_are_decoded_as_encoded(
        model_name in "[a-z]{1,12}",
        model_version in "[0-9]{1,4}",
        id in ".{0,40}",
        variant in proptest::option::of("[a-z]{1,12}"),
        outputs in vec(tensor(), 0..5),
        sizes in vec(1_usize..3000, 1..6),
    ) {
        let response = InferResponse { model_name, model_version, id, variant, outputs };
        let message = response.encode().unwrap();
        let header_length = message.header_length();
        let read = InferResponse::parse(split(message, &sizes), header_length, &Limits::default());
        prop_assert_eq!(read, Ok(response));
    }

    #[test]
    fn nested_and_flat_lists_are_equal(tensor in tensor(), pretty in any::<bool>()) {
        prop_assume!(tensor.form() == Form::Json && tensor.shape().rank() > 0);
        let flat = RequestMessage { inputs: vec![tensor.clone()], ..RequestMessage::default() };
        let head = flat.encode().unwrap().head;
        // serde_json's own reading of floats is not exact, so numbers are passed on as text.
        let data = serde_json::from_slice::<std::collections::BTreeMap<String, Vec<Input>>>(&head).unwrap();
        let values = &data["inputs"][0].data;
        let list = nested_text(&mut values.iter().map(|value| value.get()), tensor.shape().dims(), pretty);
        let body = format!(
            r#"{{"inputs":[{{"name":{},"shape":{},"datatype":"{}","data":{list}}}]}}"#,
            serde_json::to_string(tensor.name()).unwrap(),
            tensor.shape(),
            tensor.datatype(),
        );
        let read = RequestMessage::parse(body.into_bytes().into(), None, &Limits::default());
        prop_assert_eq!(read, Ok(flat));
    }
}

#[derive(serde::Deserialize)]
struct Input {
    data: Vec<Box<serde_json::value::RawValue>>,
}

fn nested_text<'a>(
    values: &mut impl Iterator<Item = &'a str>,
    dims: &[u64],
    pretty: bool,
) -> String {
    match dims.split_first() {
        None => values.next().unwrap().to_owned(),
        Some((len, inner)) => {
            let items: Vec<String> = (0..*len)
                .map(|_| nested_text(values, inner, pretty))
                .collect();
            if pretty {
                format!("[ {}\n]", items.join(" ,\n\t"))
            } else {
                format!("[{}]", items.join(","))
            }
        }
    }
}
