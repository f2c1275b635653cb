//! The bytes that gateway and worker get from each other.

use std::fmt::Debug;

use packhorse_cluster::ArtifactDigest;
use packhorse_wire::{
    ClientHandshake, ClientStep, Decoder, Features, Hello, Incoming, LinkSecret, ServerHandshake,
    ServerStep, ToGateway, ToWorker, WorkerIdentity,
};

/// The payload limit of the decoders, in bytes.
const PAYLOAD_LIMIT: u64 = 4096;

/// Any bytes in any pieces: nothing beyond the limits is accepted, and decoded messages are encoded to the same messages. The first byte is
/// the length of the pieces, less one.
pub(crate) fn decoder(input: &[u8]) {
    let Some((&piece, stream)) = input.split_first() else {
        return;
    };
    let piece = usize::from(piece) + 1;
    receive(stream, piece, ToWorker::payload_len, ToWorker::encode);
    receive(stream, piece, ToGateway::payload_len, ToGateway::encode);
}

fn receive<M: Incoming + PartialEq + Debug>(
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

/// Bytes of a stranger, who does not know the secret, to either side of a handshake: neither side accepts them. The first byte is the
/// number of honest messages that come before.
pub(crate) fn handshake(input: &[u8]) {
    let Some((&honest, stream)) = input.split_first() else {
        return;
    };
    let secret = LinkSecret::from_file_content(b"the secret that a stranger does not know");
    let identity = WorkerIdentity {
        replica: "1-1".parse().expect("a replica id"),
        artifact: ArtifactDigest::from_sha256([7; 32]),
        batch_size: 8,
    };
    let mut gateway = ClientHandshake::new(
        secret.clone(),
        Hello::new(Features::NONE, [1; 32]),
        identity,
    );
    let mut worker = ServerHandshake::new(secret, Hello::new(Features::NONE, [2; 32]), identity);
    if honest > 0 {
        let Ok(ServerStep::Send(challenge)) = worker.handle(&gateway.hello()) else {
            panic!("a worker challenges an honest gateway");
        };
        if honest > 1 {
            assert!(matches!(gateway.handle(challenge), Ok(ClientStep::Send(_))));
        }
    }
    for message in messages::<ToWorker>(stream) {
        match worker.handle(&message) {
            Ok(ServerStep::Send(_)) => {}
            Ok(ServerStep::Accept(..)) => panic!("a stranger was accepted by the worker"),
            Err(_) => break,
        }
    }
    for message in messages::<ToGateway>(stream) {
        match gateway.handle(message) {
            Ok(ClientStep::Send(_)) => panic!("a stranger's challenge was answered"),
            // The gateway trusts a worker once that has proved itself.
            Ok(ClientStep::Accepted(_)) => assert!(honest > 1, "a stranger was accepted"),
            Err(_) => break,
        }
    }
}

/// Returns the messages in a stream, as far as it can be read.
fn messages<M: Incoming>(mut stream: &[u8]) -> Vec<M> {
    let mut decoder = Decoder::<M>::new(0);
    let mut messages = Vec::new();
    while !stream.is_empty() {
        match decoder.feed(&mut stream) {
            Ok(message) => messages.extend(message),
            Err(_) => break,
        }
    }
    messages
}
