//! The elements of a tensor as JSON values.

use std::fmt::Debug;

use packhorse_cluster::Datatype;
use packhorse_protocol::{Element, Tensor};
use serde_json::Value;

/// Returns all elements, row-major. An infinity or NaN is null; bytes that are not UTF-8 become the replacement character.
pub(super) fn to_json(tensor: &Tensor) -> Vec<Value> {
    match tensor.datatype() {
        Datatype::Bool => numbers::<bool>(tensor),
        Datatype::Uint8 => numbers::<u8>(tensor),
        Datatype::Uint16 => numbers::<u16>(tensor),
        Datatype::Uint32 => numbers::<u32>(tensor),
        Datatype::Uint64 => numbers::<u64>(tensor),
        Datatype::Int8 => numbers::<i8>(tensor),
        Datatype::Int16 => numbers::<i16>(tensor),
        Datatype::Int32 => numbers::<i32>(tensor),
        Datatype::Int64 => numbers::<i64>(tensor),
        Datatype::Fp16 => numbers::<half::f16>(tensor),
        Datatype::Bf16 => numbers::<half::bf16>(tensor),
        Datatype::Fp32 => numbers::<f32>(tensor),
        Datatype::Fp64 => numbers::<f64>(tensor),
        Datatype::Bytes => {
            let strings = tensor.byte_strings().unwrap_or_default();
            strings
                .iter()
                .map(|string| String::from_utf8_lossy(string).into())
                .collect()
        }
    }
}

/// Converts numbers through their shortest text, so that the FP32 number nearest to 0.1 is written as 0.1.
fn numbers<T: Element + Debug>(tensor: &Tensor) -> Vec<Value> {
    let values = tensor.values::<T>().unwrap_or_default();
    values
        .iter()
        .map(|value| serde_json::from_str(&format!("{value:?}")).unwrap_or(Value::Null))
        .collect()
}

/// Returns the first elements.
pub(super) fn first_to_json(tensor: &Tensor, limit: usize) -> Vec<Value> {
    let mut values = to_json(tensor);
    values.truncate(limit);
    values
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Shape;
    use serde_json::json;

    use super::*;

    fn values<T: Element>(values: &[T]) -> Value {
        to_json(
            &Tensor::from_values(
                "x",
                Shape::new(&[i64::try_from(values.len()).unwrap()]).unwrap(),
                values,
            )
            .unwrap(),
        )
        .into()
    }

    #[test]
    fn elements_have_their_shortest_text() {
        assert_eq!(
            values(&[0.1_f32, -1.0, f32::NAN, f32::INFINITY, 1e-10]).to_string(),
            "[0.1,-1.0,null,null,1e-10]"
        );
        assert_eq!(values(&[u64::MAX]), json!([u64::MAX]));
        assert_eq!(values(&[i64::MIN]), json!([i64::MIN]));
        assert_eq!(values(&[true, false]), json!([true, false]));
        assert_eq!(values(&[half::f16::from_f32(0.5)]), json!([0.5]));
        let text = Tensor::from_byte_strings("x", Shape::new(&[1]).unwrap(), &["ä"]).unwrap();
        assert_eq!(to_json(&text), [json!("ä")]);
    }
}
