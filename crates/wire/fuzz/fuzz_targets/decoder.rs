//! Any bytes in any pieces: no panic, nothing beyond the limits, and decoded messages are encoded to the same messages.
//!
//! The first byte is the length of the pieces, less one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packhorse_wire::{Decoder, Incoming, ToGateway, ToWorker};

const PAYLOAD_LIMIT: u64 = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else {
        return;
    };
    let piece = usize::from(piece) + 1;
    receive(stream, piece, ToWorker::payload_len, ToWorker::encode);
    receive(stream, piece, ToGateway::payload_len, ToGateway::encode);
});

fn receive<M: Incoming + PartialEq + std::fmt::Debug>(
    stream: &[u8],
    piece: usize,
    payload_len: fn(&M) -> u64,
    encode: fn(&M, &mut Vec<u8>),
) {
    let mut decoder = Decoder::<M>::new(PAYLOAD_LIMIT);
    let mut payload_missing = 0;
    for mut bytes in stream.chunks(piece) {
        while !bytes.is_empty() {
            let payload = payload_missing.min(bytes.len());
            payload_missing -= payload;
            bytes = &bytes[payload..];
            if payload_missing > 0 {
                break;
            }
            match decoder.feed(&mut bytes) {
                Ok(None) => {}
                Ok(Some(message)) => {
                    assert!(payload_len(&message) <= PAYLOAD_LIMIT);
                    payload_missing = payload_len(&message) as usize;
                    let mut written = Vec::new();
                    encode(&message, &mut written);
                    let again = Decoder::<M>::new(PAYLOAD_LIMIT).feed(&mut &written[..]);
                    assert_eq!(again, Ok(Some(message)));
                }
                Err(_) => return,
            }
        }
    }
}
