//! A body of pure JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packhorse_protocol::ByteRope;

fuzz_target!(|body: &[u8]| {
    packhorse_protocol_fuzz::read(&ByteRope::from(body.to_vec()), None);
});
