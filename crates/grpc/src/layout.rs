//! What is known of a request before it is decoded: which model it is for, and how much memory decoding takes.
//!
//! Two bytes of a message can become hundreds of bytes of lists and tables, so that a message within the limit of a request could take more memory
//! than there is. A layout counts the parts first.

use packhorse_protocol::Limits;

use crate::fields::{Field, FieldError, Fields};

/// The most parameters of a request, and of each of its tensors.
const PARAMETERS: usize = 64;
/// The most fields of a request that are none of its lists: its texts, and what a newer client adds.
const OTHERS: usize = 64;
/// The memory of an input or output besides its lists, in bytes.
const TENSOR_BYTES: u64 = 512;
/// The memory of an entry of a table or of a list of byte strings, in bytes, besides its text.
const ENTRY_BYTES: u64 = 128;
/// The copies of a list that there are while it grows and is packed.
const COPIES: u64 = 3;
/// The most bytes of a request at whose beginning its model is looked for.
pub const SOUGHT: usize = 1024;

/// The parts of a request's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The bytes of raw tensors, which are not copied.
    pub raw_bytes: u64,
    /// The other bytes of the message, which are decoded one by one.
    pub decoded_bytes: u64,
}

/// The reason why a message is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The message is malformed.
    #[error("the message is cut off or is no message of Protocol Buffers")]
    Malformed,
    /// The message has too many parts of a kind.
    #[error("the request has more than {limit} {parts}, which is the limit")]
    TooMany {
        /// The parts.
        parts: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl Layout {
    /// Reads the layout of a `ModelInferRequest`. This takes a time that does not depend on the message's length.
    ///
    /// # Errors
    /// The message is malformed, or has more parts than a request may have.
    pub fn of(message: &[u8], limits: &Limits) -> Result<Self, LayoutError> {
        let mut raw_bytes = 0;
        let (mut inputs, mut outputs, mut raw) = (0, 0, 0);
        let (mut parameters, mut others) = (0, 0);
        for field in Fields::of(message) {
            match field? {
                (4, _) => count(&mut parameters, PARAMETERS, "parameters")?,
                (5, _) => count(&mut inputs, limits.tensors, "inputs")?,
                (6, _) => count(&mut outputs, limits.tensors, "requested outputs")?,
                (7, field) => {
                    count(&mut raw, limits.tensors, "raw_input_contents")?;
                    if let Field::Bytes(bytes) = field {
                        raw_bytes += bytes.len() as u64;
                    }
                }
                _ => count(&mut others, OTHERS, "other fields")?,
            }
        }
        Ok(Self {
            raw_bytes,
            decoded_bytes: message.len() as u64 - raw_bytes,
        })
    }

    /// Returns the most memory that a `ModelInferRequest` takes besides its raw tensors when it is decoded and read, in bytes.
    ///
    /// # Errors
    /// The message is malformed, or a tensor has too many parameters.
    pub fn decoding_memory(message: &[u8]) -> Result<u64, LayoutError> {
        let mut memory = 0;
        for field in Fields::of(message) {
            memory += match field? {
                (4, Field::Bytes(entry)) => ENTRY_BYTES + entry.len() as u64,
                (5, Field::Bytes(input)) => input_memory(input)?,
                (6, Field::Bytes(output)) => tensor_memory(output, 2)?,
                (1..=3, Field::Bytes(text)) => text.len() as u64,
                _ => 0,
            };
        }
        Ok(memory)
    }
}

impl From<FieldError> for LayoutError {
    fn from(_: FieldError) -> Self {
        Self::Malformed
    }
}

fn count(counter: &mut usize, limit: usize, parts: &'static str) -> Result<(), LayoutError> {
    *counter += 1;
    if *counter > limit {
        return Err(LayoutError::TooMany { parts, limit });
    }
    Ok(())
}

/// Returns the memory of an `InferInputTensor`.
fn input_memory(input: &[u8]) -> Result<u64, LayoutError> {
    let mut memory = tensor_memory(input, 4)?;
    for field in Fields::of(input) {
        match field? {
            // A dimension of one byte becomes one of eight.
            (3, Field::Bytes(dims)) => memory += COPIES * 8 * dims.len() as u64,
            (3, Field::Varint) => memory += COPIES * 8,
            (5, Field::Bytes(contents)) => memory += COPIES * contents_memory(contents)?,
            _ => {}
        }
    }
    Ok(memory)
}

/// Returns the memory of a tensor besides its lists. Field `parameters` has its parameters.
fn tensor_memory(tensor: &[u8], parameters: u32) -> Result<u64, LayoutError> {
    let (mut memory, mut entries) = (TENSOR_BYTES, 0);
    for field in Fields::of(tensor) {
        match field? {
            (number, Field::Bytes(entry)) if number == parameters => {
                count(&mut entries, PARAMETERS, "parameters of a tensor")?;
                memory += ENTRY_BYTES + entry.len() as u64;
            }
            (1 | 2, Field::Bytes(text)) => memory += text.len() as u64,
            _ => {}
        }
    }
    Ok(memory)
}

/// Returns the memory of the lists of an `InferTensorContents`, once.
fn contents_memory(contents: &[u8]) -> Result<u64, LayoutError> {
    let mut memory = 0;
    for field in Fields::of(contents) {
        memory += match field? {
            (8, Field::Bytes(element)) => ENTRY_BYTES + element.len() as u64,
            // A number of one byte becomes one of eight, or of four; the others have their size.
            (2..=5, Field::Bytes(list)) => 8 * list.len() as u64,
            (_, Field::Bytes(list)) => list.len() as u64,
            (_, Field::Varint | Field::Fixed) => 8,
        };
    }
    Ok(memory)
}

/// What the first bytes of a `ModelInferRequest` say of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning<'a> {
    /// The name and the version of its model.
    Model {
        /// The name.
        name: &'a str,
        /// The version, if it stands before the name or next to it; else empty, as for any. A message whose fields come in another order than usual
        /// may have it later.
        version: &'a str,
    },
    /// More bytes are needed to tell.
    NeedsMore,
    /// The model's name does not stand at the beginning, or the message is malformed: decoding tells.
    Elsewhere,
}

/// Looks for the model at the beginning of a request, where all known clients have it. `is_whole` says that the message has no further bytes: then its
/// name is found wherever it stands.
pub fn beginning(bytes: &[u8], is_whole: bool) -> Beginning<'_> {
    let more = || {
        if is_whole || bytes.len() >= SOUGHT {
            Beginning::Elsewhere
        } else {
            Beginning::NeedsMore
        }
    };
    let mut fields = Fields::of(bytes);
    let mut version = &b""[..];
    let name = loop {
        match fields.next() {
            Some(Ok((1, Field::Bytes(name)))) => break name,
            Some(Ok((2, Field::Bytes(before)))) => version = before,
            Some(Ok((number, _))) if number > 2 => {}
            None | Some(Err(FieldError::CutOff)) => return more(),
            Some(_) => return Beginning::Elsewhere,
        }
    };
    // The version, if there is one, usually comes next: the first byte of the next field tells, and it is 2 and bytes.
    let after = &bytes[bytes.len() - fields.left()..];
    match after.first() {
        None if !is_whole => return more(),
        Some(0x12) => match fields.next() {
            Some(Ok((2, Field::Bytes(next)))) => version = next,
            _ => return more(),
        },
        _ => {}
    }
    match (str::from_utf8(name), str::from_utf8(version)) {
        (Ok(name), Ok(version)) => Beginning::Model { name, version },
        _ => Beginning::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::messages::inference::{
        InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor,
    };

    fn request(name: &str, version: &str) -> ModelInferRequest {
        ModelInferRequest {
            model_name: name.to_owned(),
            model_version: version.to_owned(),
            id: "7".to_owned(),
            raw_input_contents: vec![vec![5; 600].into(), vec![6; 400].into()],
            ..ModelInferRequest::default()
        }
    }

    #[test]
    fn the_model_is_found_as_soon_as_its_bytes_have_come() {
        for (name, version) in [("resnet", ""), ("resnet", "12"), ("a", "1")] {
            let bytes = request(name, version).encode_to_vec();
            let found = (0..bytes.len()).map(|length| beginning(&bytes[..length], false));
            let found: Vec<Beginning<'_>> = found.collect();
            let first = found
                .iter()
                .position(|found| *found != Beginning::NeedsMore);
            let first = first.unwrap_or_default();
            assert!(first > name.len() && first < 20, "{first}");
            let expected = Beginning::Model { name, version };
            assert!(
                found[first..].iter().all(|found| *found == expected),
                "{found:?}"
            );
        }
    }

    /// The fields of a request, each by itself.
    fn fields(name: &str, version: &str, id: &str, raw: usize) -> [Vec<u8>; 4] {
        let whole = ModelInferRequest::default();
        let named = |model_name: &str| ModelInferRequest {
            model_name: model_name.to_owned(),
            ..whole.clone()
        };
        [
            named(name),
            ModelInferRequest {
                model_version: version.to_owned(),
                ..whole.clone()
            },
            ModelInferRequest {
                id: id.to_owned(),
                ..whole.clone()
            },
            ModelInferRequest {
                raw_input_contents: vec![vec![5; raw].into()],
                ..whole.clone()
            },
        ]
        .map(|request| request.encode_to_vec())
    }

    #[test]
    fn the_name_is_found_among_fields_in_any_order() {
        let [name, version, id, raw] = fields("resnet", "12", "a", 600);
        let model = |version| Beginning::Model {
            name: "resnet",
            version,
        };
        for (order, expected) in [
            ([&name, &version, &id, &raw], model("12")),
            ([&version, &name, &id, &raw], model("12")),
            ([&id, &version, &raw, &name], model("12")),
            ([&id, &name, &version, &raw], model("12")),
            // The version may still come.
            ([&name, &id, &version, &raw], model("")),
            ([&raw, &name, &id, &version], model("")),
        ] {
            let mut bytes: Vec<u8> = order.into_iter().flatten().copied().collect();
            assert_eq!(beginning(&bytes, true), expected);
            // Another field follows, which is none of the two.
            bytes.extend(b"\x78\x01");
            assert_eq!(beginning(&bytes, false), expected);
        }
        // Behind a tensor it is found only in a message that is complete.
        let [name, _, _, raw] = fields("resnet", "", "", 5 * SOUGHT);
        let last = [raw, name].concat();
        assert_eq!(beginning(&last[..SOUGHT], false), Beginning::Elsewhere);
        assert_eq!(beginning(&last, true), model(""));
    }

    #[test]
    fn a_model_elsewhere_is_left_to_decoding() {
        let nameless = request("", "1").encode_to_vec();
        assert_eq!(beginning(&nameless, true), Beginning::Elsewhere);
        assert_eq!(beginning(b"", true), Beginning::Elsewhere);
        assert_eq!(
            beginning(b"\x0a\x02\xff\xff\x1a", false),
            Beginning::Elsewhere
        );
        // A name that goes on and on is no name.
        let mut long = b"\x0a\xff\xff\x03".to_vec();
        assert_eq!(beginning(&long, false), Beginning::NeedsMore);
        long.resize(SOUGHT, b'x');
        assert_eq!(beginning(&long, false), Beginning::Elsewhere);
    }

    #[test]
    fn raw_tensors_are_not_decoded_and_lists_take_memory() {
        let limits = Limits::default();
        let mut request = request("resnet", "");
        let layout = Layout::of(&request.encode_to_vec(), &limits);
        let layout = layout.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(layout.raw_bytes, 1000);
        assert!(layout.decoded_bytes < 30, "{layout:?}");
        let memory =
            |request: &ModelInferRequest| Layout::decoding_memory(&request.encode_to_vec());
        assert!(memory(&request).is_ok_and(|memory| memory < 100));
        let contents = InferTensorContents {
            bytes_contents: vec![Vec::new().into(); 1000],
            ..InferTensorContents::default()
        };
        request.inputs = vec![InferInputTensor {
            contents: Some(contents),
            ..InferInputTensor::default()
        }];
        assert!(memory(&request).is_ok_and(|memory| memory >= 3 * 1000 * 32));
    }

    #[test]
    fn what_would_grow_without_bounds_is_refused() {
        let limits = Limits::default();
        for (field, parts) in [
            (5_u8, "inputs"),
            (6, "requested outputs"),
            (7, "raw_input_contents"),
            (4, "parameters"),
            (100 >> 3, "other fields"),
        ] {
            let many = [(field << 3) | 2, 0].repeat(100_000);
            let error = Layout::of(&many, &limits).err().map(|e| e.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains(parts) && error.contains("limit"), "{error}");
        }
        for malformed in [&b"\x0b"[..], b"\x0a\x05ab", b"\x00", b"\x0a", &[0xff; 11]] {
            assert_eq!(Layout::of(malformed, &limits), Err(LayoutError::Malformed));
        }
    }
}
