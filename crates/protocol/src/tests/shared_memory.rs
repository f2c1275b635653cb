//! Tensors in shared memory, as Triton's clients write them.

use bytes::Bytes;
use packhorse_cluster::{Datatype, Program};

use super::{program, spec};
use crate::{
    Form, InferRequest, InferResponse, Limits, NoRegions, RegionRange, Regions, RequestError,
    Tensor,
};

/// One region, "in", with bytes 0, 1, 2, ….
struct OneRegion(Vec<u8>);

impl Regions for OneRegion {
    fn read(&mut self, range: &RegionRange) -> Result<Bytes, String> {
        if range.region != "in" {
            return Err("there is none".to_owned());
        }
        let range = range.offset as usize..(range.offset + range.bytes) as usize;
        let bytes = self.0.get(range).ok_or("it ends before")?;
        Ok(Bytes::copy_from_slice(bytes))
    }
}

fn model() -> Program {
    program(4, vec![spec("x", Datatype::Uint8, &[-1, 3])])
}

fn parse(parameters: &str, outputs: &str) -> Result<InferRequest, RequestError> {
    let body = format!(
        r#"{{"inputs":[{{"name":"x","shape":[2,3],"datatype":"UINT8","parameters":{parameters}}}],"outputs":{outputs}}}"#
    );
    let mut regions = OneRegion((0..16).collect());
    let body = body.into_bytes().into();
    InferRequest::parse_with(body, None, &model(), &Limits::default(), &mut regions)
}

fn error(parameters: &str, outputs: &str) -> String {
    parse(parameters, outputs).unwrap_err().to_string()
}

const X: &str =
    r#"{"shared_memory_region":"in","shared_memory_offset":4,"shared_memory_byte_size":6}"#;

#[test]
fn an_input_is_read_from_its_region_and_an_output_has_its_place() {
    let outputs = r#"[{"name":"y","parameters":{"shared_memory_region":"out","shared_memory_byte_size":16}}]"#;
    let request = parse(X, outputs).unwrap();
    let [x] = request.inputs.as_slice() else {
        panic!("{request:?}")
    };
    assert_eq!(x.form(), Form::Shared);
    assert_eq!(x.data().to_bytes(), &[4, 5, 6, 7, 8, 9][..]);
    let [y] = request.outputs.as_slice() else {
        panic!("{request:?}")
    };
    let range = RegionRange {
        region: "out".to_owned(),
        offset: 0,
        bytes: 16,
    };
    assert_eq!((y.index, y.form, &y.range), (0, Form::Shared, &Some(range)));
}

#[test]
fn a_reader_without_regions_refuses_them() {
    let body = format!(
        r#"{{"inputs":[{{"name":"x","shape":[2,3],"datatype":"UINT8","parameters":{X}}}]}}"#
    );
    let body = body.into_bytes().into();
    let limits = Limits::default();
    let refused = InferRequest::parse_with(body, None, &model(), &limits, &mut NoRegions);
    assert_eq!(
        refused.unwrap_err().to_string(),
        r#"input "x": shared memory region "in": shared memory is not supported here"#
    );
}

#[test]
fn bad_ranges_are_refused() {
    for (parameters, message) in [
        (
            r#"{"shared_memory_region":"other","shared_memory_byte_size":6}"#,
            r#"input "x": shared memory region "other": there is none"#,
        ),
        (
            r#"{"shared_memory_region":"in","shared_memory_offset":14,"shared_memory_byte_size":6}"#,
            r#"input "x": shared memory region "in": it ends before"#,
        ),
        (
            r#"{"shared_memory_region":"in","shared_memory_byte_size":5}"#,
            r#"input "x": the data has 5 bytes, but UINT8 [2,3] requires 6"#,
        ),
        (
            r#"{"shared_memory_region":"in"}"#,
            r#"input "x": parameters.shared_memory_byte_size is missing"#,
        ),
        (
            r#"{"shared_memory_offset":1}"#,
            r#"input "x": parameters.shared_memory_region is missing"#,
        ),
        (
            r#"{"shared_memory_region":"in","shared_memory_byte_size":6,"binary_data_size":6}"#,
            r#"input "x": expected one of "data", parameters.binary_data_size and parameters.shared_memory_region"#,
        ),
        (
            r#"{"shared_memory_region":"in","shared_memory_region":"in"}"#,
            r#"input "x": parameters.shared_memory_region: given twice"#,
        ),
    ] {
        assert_eq!(error(parameters, "[]"), message);
    }
    let text = error(r#"{"shared_memory_byte_size":-1}"#, "[]");
    assert!(
        text.starts_with(r#"input "x": parameters.shared_memory_byte_size: "#),
        "{text}"
    );
    let outputs = r#"[{"name":"y","parameters":{"shared_memory_region":"out"}}]"#;
    assert_eq!(
        error(X, outputs),
        "outputs[0]: parameters.shared_memory_byte_size is missing"
    );
}

#[test]
fn an_output_in_shared_memory_has_no_data_in_the_response() {
    let shape = super::shape(&[1]);
    let y = Tensor::from_values("y", shape, &[1_u8]).unwrap();
    let response = InferResponse {
        model_name: "m".to_owned(),
        model_version: "1".to_owned(),
        id: String::new(),
        variant: None,
        outputs: vec![y.in_form(Form::Shared)],
    };
    let message = response.encode().unwrap();
    assert_eq!(message.header_length(), None);
    assert_eq!(
        message.into_body().to_bytes(),
        &br#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","shape":[1],"datatype":"UINT8"}]}"#[..]
    );
}
