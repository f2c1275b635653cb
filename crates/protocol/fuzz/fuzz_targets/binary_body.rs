//! A body with binary tensors: a header length, the size of its chunks, and the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packhorse_protocol::ByteRope;

fuzz_target!(|input: (u16, u16, &[u8])| {
    let (header_length, piece, body) = input;
    let rope: ByteRope = body
        .chunks(usize::from(piece).max(1))
        .map(|chunk| chunk.to_vec().into())
        .collect();
    packhorse_protocol_fuzz::read(&rope, Some(u64::from(header_length)));
});
