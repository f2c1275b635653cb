//! Bytes from anyone: nothing panics, and the memory that reading takes is bounded by their number.
#![expect(
    unsafe_code,
    reason = "an allocator that counts can be written in no other way"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use crate::{ByteRope, Form, InferRequest, InferResponse, Limits, RequestMessage, Tensor};
use packhorse_cluster::{Datatype, Program};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{shape, spec};

/// The system's allocator, counting what each thread holds and held at most.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many bytes `work` held at once at most.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    usize::try_from(PEAK.get() - before).unwrap_or_default()
}

fn program() -> Program {
    super::program(
        4,
        vec![
            spec("x", Datatype::Fp64, &[-1, -1]),
            spec("s", Datatype::Bytes, &[-1]),
        ],
    )
}

/// Reads the bytes in every way, and looks at the memory that takes.
fn read(bytes: &[u8], header_length: Option<u64>) {
    let body = ByteRope::from(bytes.to_vec());
    let program = program();
    let limits = Limits::default();
    let peak = peak_of(|| {
        let _ = InferRequest::parse(body.clone(), header_length, &program, &limits);
        let _ = RequestMessage::parse(body.clone(), header_length, &limits);
        let _ = InferResponse::parse(body.clone(), header_length, &limits);
    });
    // Four times for numbers that are unpacked from two bytes to eight, and some for names, messages and lists.
    let bound = 8 * bytes.len() + 16 * 1024;
    assert!(
        peak <= bound,
        "{} bytes took {peak} bytes of memory",
        bytes.len()
    );
}

fn valid() -> (Vec<u8>, Option<u64>) {
    let x = Tensor::from_values("x", shape(&[2, 3]), &[0.5, 1.0, -2.0, 3e9, 4.0, 5.0]);
    let s = Tensor::from_byte_strings("s", shape(&[2]), &["a", "long \u{e9}"]);
    let request = RequestMessage {
        id: "id".to_owned(),
        inputs: vec![x.unwrap().in_form(Form::Json), s.unwrap()],
        outputs: vec![crate::OutputRequest {
            name: "y".to_owned(),
            form: Some(Form::Binary),
        }],
        priority: 3,
        ..RequestMessage::default()
    };
    let message = request.encode().unwrap();
    let header_length = message.header_length();
    (message.into_body().to_bytes().to_vec(), header_length)
}

#[test]
fn the_request_that_is_spoilt_below_is_right() {
    let (bytes, header_length) = valid();
    let request =
        InferRequest::parse(bytes.into(), header_length, &program(), &Limits::default()).unwrap();
    assert_eq!(request.rows, 2);
}

#[test]
fn promises_cost_nothing() {
    let huge = 1_u64 << 40;
    for head in [
        format!(r#"{{"inputs":[{{"name":"x","shape":[{huge}],"datatype":"FP64","data":[1]}}]}}"#),
        format!(r#"{{"inputs":[{{"name":"s","shape":[{huge}],"datatype":"BYTES","data":[]}}]}}"#),
        format!(
            r#"{{"inputs":[{{"name":"x","shape":[{huge}],"datatype":"INT8","parameters":{{"binary_data_size":{huge}}}}}]}}"#
        ),
    ] {
        read(head.as_bytes(), None);
        read(head.as_bytes(), Some(head.len() as u64));
    }
    // The densest there is: elements of eight bytes written in two.
    let dense = format!(
        r#"{{"inputs":[{{"name":"x","shape":[100000],"datatype":"FP64","data":[{}0]}}]}}"#,
        "0,".repeat(99_999)
    );
    read(dense.as_bytes(), None);
    for filler in ["[", "{\"a\":", "1,", "\"", "\\\"", "{}", "[],"] {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[{}"#,
            filler.repeat(30_000)
        );
        read(body.as_bytes(), None);
        let body = format!(
            r#"{{"parameters":{{"sequence_id":[{}"#,
            filler.repeat(30_000)
        );
        read(body.as_bytes(), None);
    }
    read("\u{1}".repeat(50_000).as_bytes(), None);
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300), header_length in proptest::option::of(0_u64..400)) {
        read(&bytes, header_length);
    }

    #[test]
    fn spoilt_requests_are_refused_or_read(
        changes in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in any::<Index>(),
        keep in any::<bool>(),
        off in -3_i64..4,
    ) {
        let (mut bytes, header_length) = valid();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if !keep {
            bytes.truncate(cut.index(bytes.len()));
        }
        read(&bytes, header_length.map(|length| length.saturating_add_signed(off)));
    }

    #[test]
    fn text_of_json_tokens_is_refused_or_read(
        tokens in vec(proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"inputs\"", "\"name\"", "\"x\"", "\"shape\"", "\"datatype\"", "\"FP32\"", "\"BYTES\"",
            "\"data\"", "\"parameters\"", "\"binary_data_size\"", "\"outputs\"", "1", "-1", "2.5", "1e400", "true", "null", " ",
        ]), 0..60),
    ) {
        read(tokens.concat().as_bytes(), None);
    }
}
