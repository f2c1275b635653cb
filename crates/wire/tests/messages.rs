//! Messages through encoder and decoder: their bytes, arrival in pieces of any size, and damaged input.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test may panic like the test itself"
)]

use std::{fmt::Write, time::Duration};

use packhorse_cluster::{ArtifactDigest, Datatype, Generation, ReplicaId, Shape};
use packhorse_wire::{
    BatchHeader, BatchId, ByteRange, Challenge, DecodeError, Decoder, FailureHeader, FailureKind,
    Features, HEADER_LEN, Hello, Incoming, MAX_METADATA, MAX_RANGES, MAX_TENSORS, MAX_TEXT,
    ResultHeader, StageDurations, TensorHeader, ToGateway, ToWorker, VersionRange, WeightsPlace,
    WeightsReport, WorkerIdentity,
};
use proptest::{collection::vec, option, prelude::*};

const PAYLOAD_LIMIT: u64 = 1 << 20;

fn tensor(datatype: Datatype, dims: &[i64]) -> TensorHeader {
    TensorHeader::new(datatype, Shape::new(dims).unwrap()).unwrap()
}

fn batch() -> BatchHeader {
    BatchHeader {
        id: BatchId(7),
        rows: 2,
        inputs: vec![
            tensor(Datatype::Int64, &[2, 3]),
            tensor(Datatype::Fp32, &[2]),
        ],
    }
}

fn bytes_of(message: &ToWorker) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn bytes_to_gateway(message: &ToGateway) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn range(offset: u64, length: u64) -> ByteRange {
    ByteRange { offset, length }
}

fn decode(mut bytes: &[u8]) -> Result<Option<ToWorker>, DecodeError> {
    Decoder::new(PAYLOAD_LIMIT).feed(&mut bytes)
}

fn hex_dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        for (i, byte) in line.iter().enumerate() {
            write!(text, "{}{byte:02x}", if i == 0 { "" } else { " " }).unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn a_batch_looks_like_this_on_the_wire() {
    insta::assert_snapshot!(hex_dump(&bytes_of(&ToWorker::Batch(batch()))), @r"
    50 4b 48 57 02 00 05 00 07 00 00 00 00 00 00 00
    21 00 00 00 00 00 00 00 38 00 00 00 00 00 00 00
    02 00 00 00 02 09 02 02 00 00 00 00 00 00 00 03
    00 00 00 00 00 00 00 0c 01 02 00 00 00 00 00 00
    00
    ");
}

#[test]
fn a_result_looks_like_this_on_the_wire() {
    let nanos = Duration::from_nanos;
    let result = ToGateway::Result(ResultHeader {
        id: BatchId(0x0102_0304_0506_0708),
        outputs: vec![tensor(Datatype::Fp16, &[1, 5])],
        stages: StageDurations {
            receive: nanos(1),
            queue_wait: nanos(2),
            copy_in: nanos(3),
            compute: nanos(4),
            copy_out: nanos(5),
        },
    });
    insta::assert_snapshot!(hex_dump(&bytes_to_gateway(&result)), @r"
    50 4b 48 57 02 00 06 00 08 07 06 05 04 03 02 01
    3b 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00
    01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00
    03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00
    05 00 00 00 00 00 00 00 01 0a 02 01 00 00 00 00
    00 00 00 05 00 00 00 00 00 00 00
    ");
}

#[test]
fn a_challenge_looks_like_this_on_the_wire() {
    let challenge = ToGateway::Challenge(Box::new(Challenge {
        hello: Hello {
            versions: VersionRange { first: 2, last: 3 },
            features: Features(5),
            nonce: [0xaa; 32],
        },
        proof: [0xbb; 32],
        identity: WorkerIdentity {
            replica: ReplicaId {
                generation: Generation(12),
                number: 3,
            },
            artifact: ArtifactDigest::from_sha256([0xcc; 32]),
            batch_size: 16,
        },
    }));
    insta::assert_snapshot!(hex_dump(&bytes_to_gateway(&challenge)), @r"
    50 4b 48 57 02 00 02 00 00 00 00 00 00 00 00 00
    76 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    02 03 05 00 00 00 aa aa aa aa aa aa aa aa aa aa
    aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa
    aa aa aa aa aa aa bb bb bb bb bb bb bb bb bb bb
    bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb
    bb bb bb bb bb bb 0c 00 00 00 00 00 00 00 03 00
    00 00 cc cc cc cc cc cc cc cc cc cc cc cc cc cc
    cc cc cc cc cc cc cc cc cc cc cc cc cc cc cc cc
    cc cc 10 00 00 00
    ");
}

#[test]
fn short_messages_look_like_this_on_the_wire() {
    let mut text = String::new();
    for message in [
        ToGateway::Accept,
        ToGateway::Draining,
        ToGateway::Close("why".to_owned()),
    ] {
        writeln!(
            text,
            "{message:?}\n{}",
            hex_dump(&bytes_to_gateway(&message))
        )
        .unwrap();
    }
    let failure = ToGateway::Failure(FailureHeader {
        id: BatchId(9),
        kind: FailureKind::TimedOut,
        message: "ö".to_owned(),
    });
    writeln!(text, "Failure\n{}", hex_dump(&bytes_to_gateway(&failure))).unwrap();
    insta::assert_snapshot!(text, @r#"
    Accept
    50 4b 48 57 02 00 04 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00

    Draining
    50 4b 48 57 02 00 08 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00

    Close("why")
    50 4b 48 57 02 00 09 00 00 00 00 00 00 00 00 00
    05 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    03 00 77 68 79

    Failure
    50 4b 48 57 02 00 07 00 09 00 00 00 00 00 00 00
    05 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    03 02 00 c3 b6
    "#);
}

/// Returns the batch's bytes with one of them changed.
fn with_byte(at: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes_of(&ToWorker::Batch(batch()));
    bytes[at] = value;
    bytes
}

#[test]
fn every_part_of_the_header_is_checked() {
    assert_eq!(decode(&with_byte(3, b'X')), Err(DecodeError::Magic));
    assert_eq!(decode(&with_byte(4, 1)), Err(DecodeError::Version(1)));
    assert_eq!(decode(&with_byte(6, 77)), Err(DecodeError::Kind(77)));
    // A kind of the other direction is unknown, too.
    assert_eq!(decode(&with_byte(6, 6)), Err(DecodeError::Kind(6)));
    assert_eq!(decode(&with_byte(7, 1)), Err(DecodeError::Reserved));
    assert_eq!(decode(&with_byte(20, 1)), Err(DecodeError::Reserved));
    assert_eq!(
        decode(&with_byte(18, 1)),
        Err(DecodeError::MetadataTooLong(0x1_0000 + 33))
    );
    assert_eq!(
        decode(&with_byte(27, 1)),
        Err(DecodeError::PayloadTooLong {
            length: 0x0100_0000 + 56,
            limit: PAYLOAD_LIMIT
        })
    );
    assert_eq!(
        decode(&with_byte(24, 57)),
        Err(DecodeError::PayloadMismatch {
            announced: 57,
            needed: 56
        })
    );
    let mut hello = bytes_of(&ToWorker::Hello(Hello::new(Features::NONE, [1; 32])));
    hello[8] = 1;
    assert_eq!(
        decode(&hello),
        Err(DecodeError::Reserved),
        "a hello is about no batch"
    );
}

#[test]
fn every_part_of_the_metadata_is_checked() {
    let m = HEADER_LEN;
    assert_eq!(decode(&with_byte(m + 4, 65)), Err(DecodeError::Tensors(65)));
    assert_eq!(
        decode(&with_byte(m + 4, 3)),
        Err(DecodeError::MetadataTooShort)
    );
    assert_eq!(
        decode(&with_byte(m + 4, 1)),
        Err(DecodeError::MetadataLeftOver(10))
    );
    assert_eq!(decode(&with_byte(m + 5, 0)), Err(DecodeError::Datatype(0)));
    assert_eq!(
        decode(&with_byte(m + 5, 14)),
        Err(DecodeError::Datatype(14)),
        "BYTES has no width"
    );
    assert!(matches!(
        decode(&with_byte(m + 6, 17)),
        Err(DecodeError::Shape(_))
    ));
    assert!(
        matches!(decode(&with_byte(m + 14, 0x80)), Err(DecodeError::Shape(_))),
        "a negative dimension"
    );
    let mut failure = bytes_to_gateway(&ToGateway::Failure(FailureHeader {
        id: BatchId(1),
        kind: FailureKind::OutOfMemory,
        message: "a".to_owned(),
    }));
    failure[HEADER_LEN + 3] = 0xff;
    let decode = |bytes: &[u8]| Decoder::<ToGateway>::new(0).feed(&mut &bytes[..]);
    assert_eq!(decode(&failure), Err(DecodeError::Text));
    failure[HEADER_LEN] = 9;
    assert_eq!(decode(&failure), Err(DecodeError::FailureKind(9)));
}

#[test]
fn another_protocol_is_noticed_at_its_first_bytes() {
    for start in [&b"G"[..], b"GET / HTTP/1.1\r\n", b"PKHX", b"\x16\x03\x01"] {
        assert_eq!(decode(start), Err(DecodeError::Magic));
    }
    assert_eq!(decode(b"PKH"), Ok(None));
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let long = ToGateway::Close("ä".repeat(MAX_TEXT));
    let decoded = Decoder::<ToGateway>::new(0)
        .feed(&mut &bytes_to_gateway(&long)[..])
        .unwrap();
    assert_eq!(decoded, Some(ToGateway::Close("ä".repeat(MAX_TEXT / 2))));
}

#[test]
fn messages_about_shared_memory_look_like_this_on_the_wire() {
    let ranges = vec![range(0x1000, 48), range(64, 8)];
    let mut text = hex_dump(&bytes_of(&ToWorker::SharedBatch(batch(), ranges)));
    writeln!(text, "{}", hex_dump(&bytes_of(&ToWorker::Memory(1 << 26)))).unwrap();
    text += &hex_dump(&bytes_of(&ToWorker::Release(BatchId(7))));
    insta::assert_snapshot!(text, @r"
    50 4b 48 57 02 00 0b 00 07 00 00 00 00 00 00 00
    43 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    02 00 00 00 02 09 02 02 00 00 00 00 00 00 00 03
    00 00 00 00 00 00 00 0c 01 02 00 00 00 00 00 00
    00 02 00 00 10 00 00 00 00 00 00 30 00 00 00 00
    00 00 00 40 00 00 00 00 00 00 00 08 00 00 00 00
    00 00 00
    50 4b 48 57 02 00 0a 00 00 00 00 00 00 00 00 00
    08 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 04 00 00 00 00

    50 4b 48 57 02 00 0d 00 07 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    ");
}

#[test]
fn messages_about_weights_look_like_this_on_the_wire() {
    let mut text = hex_dump(&bytes_of(&ToWorker::Load));
    let wanted = ReplicaId {
        generation: Generation(5),
        number: 6,
    };
    for unload in [None, Some(wanted)].map(ToWorker::Unload) {
        writeln!(text, "{}", hex_dump(&bytes_of(&unload))).unwrap();
    }
    let report = ToGateway::Weights(WeightsReport {
        orders: 3,
        place: WeightsPlace::Resident,
        bytes: 0x0010_0000,
        memory: 0x4000_0000,
        load: Duration::from_micros(1),
        cold_load: Duration::from_micros(2),
    });
    text += &hex_dump(&bytes_to_gateway(&report));
    insta::assert_snapshot!(text, @r"
    50 4b 48 57 02 00 0e 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    50 4b 48 57 02 00 0f 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00

    50 4b 48 57 02 00 0f 00 00 00 00 00 00 00 00 00
    0c 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    05 00 00 00 00 00 00 00 06 00 00 00

    50 4b 48 57 02 00 10 00 00 00 00 00 00 00 00 00
    25 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    03 00 00 00 01 00 00 10 00 00 00 00 00 00 00 00
    40 00 00 00 00 e8 03 00 00 00 00 00 00 d0 07 00
    00 00 00 00 00
    ");
    let mut neither = bytes_to_gateway(&report);
    neither[HEADER_LEN + 4] = 3;
    let decoded = Decoder::<ToGateway>::new(0).feed(&mut &neither[..]);
    assert_eq!(decoded, Err(DecodeError::Reserved));
}

#[test]
fn ranges_have_as_many_bytes_as_the_tensors() {
    let decode_ranges =
        |ranges: &[ByteRange]| decode(&bytes_of(&ToWorker::SharedBatch(batch(), ranges.to_vec())));
    let mismatch = |announced| {
        Err(DecodeError::PayloadMismatch {
            announced,
            needed: 56,
        })
    };
    assert!(
        decode_ranges(&[range(u64::MAX, 56)]).is_ok(),
        "the receiver knows its memory"
    );
    assert_eq!(decode_ranges(&[range(0, 57)]), mismatch(57));
    assert_eq!(decode_ranges(&[]), mismatch(0));
    assert_eq!(
        decode_ranges(&[range(0, u64::MAX), range(0, 57)]),
        mismatch(u64::MAX),
        "the sum does not wrap"
    );
    let mut too_many = bytes_of(&ToWorker::SharedBatch(batch(), vec![range(0, 56)]));
    too_many[HEADER_LEN + 33] = 1;
    too_many[HEADER_LEN + 34] = 1;
    assert_eq!(decode(&too_many), Err(DecodeError::Ranges(257)));
    let large = BatchHeader {
        inputs: vec![tensor(Datatype::Uint8, &[1 + PAYLOAD_LIMIT.cast_signed()])],
        ..batch()
    };
    let needed = PAYLOAD_LIMIT + 1;
    assert_eq!(
        decode(&bytes_of(&ToWorker::SharedBatch(
            large,
            vec![range(0, needed)]
        ))),
        Err(DecodeError::PayloadTooLong {
            length: needed,
            limit: PAYLOAD_LIMIT
        })
    );
}

#[test]
fn the_largest_message_fits_the_metadata_limit() {
    let inputs = vec![tensor(Datatype::Fp32, &[1; Shape::MAX_RANK]); MAX_TENSORS];
    let batch = BatchHeader {
        id: BatchId(u64::MAX),
        rows: 1,
        inputs,
    };
    let mut ranges = vec![range(0, 1); MAX_RANGES];
    ranges[0].length += batch.inputs.len() as u64 * 4 - MAX_RANGES as u64;
    let message = ToWorker::SharedBatch(batch, ranges);
    let bytes = bytes_of(&message);
    assert!(bytes.len() - HEADER_LEN <= MAX_METADATA);
    assert_eq!(decode(&bytes), Ok(Some(message)));
}

fn any_tensor() -> impl Strategy<Value = TensorHeader> {
    let sized = prop::sample::select(&Datatype::ALL[..13]);
    (sized, vec(0_i64..6, 0..5)).prop_map(|(datatype, dims)| tensor(datatype, &dims))
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<[u8; 2]>(), any::<u32>(), any::<[u8; 32]>()).prop_map(
        |([first, last], features, nonce)| Hello {
            versions: VersionRange { first, last },
            features: Features(features),
            nonce,
        },
    )
}

/// Ranges of as many bytes as the tensors.
fn ranges_of(tensors: &[TensorHeader]) -> Vec<ByteRange> {
    let lengths = tensors.iter().map(TensorHeader::byte_len);
    lengths.map(|length| range(length * 7, length)).collect()
}

fn any_to_worker() -> impl Strategy<Value = ToWorker> {
    prop_oneof![
        hello().prop_map(ToWorker::Hello),
        any::<[u8; 32]>().prop_map(ToWorker::Proof),
        (any::<u64>(), any::<u32>(), vec(any_tensor(), 0..6)).prop_map(|(id, rows, inputs)| {
            ToWorker::Batch(BatchHeader {
                id: BatchId(id),
                rows,
                inputs,
            })
        }),
        (any::<u64>(), vec(any_tensor(), 0..6)).prop_map(|(id, inputs)| {
            let ranges = ranges_of(&inputs);
            let id = BatchId(id);
            ToWorker::SharedBatch(
                BatchHeader {
                    id,
                    rows: 1,
                    inputs,
                },
                ranges,
            )
        }),
        any::<u64>().prop_map(ToWorker::Memory),
        any::<u64>().prop_map(|id| ToWorker::Release(BatchId(id))),
        Just(ToWorker::Load),
        option::of((any::<u64>(), any::<u32>())).prop_map(|wanted| {
            ToWorker::Unload(wanted.map(|(generation, number)| ReplicaId {
                generation: Generation(generation),
                number,
            }))
        }),
    ]
}

fn any_stages() -> impl Strategy<Value = StageDurations> {
    any::<[u64; 5]>().prop_map(|nanos| {
        let [receive, queue_wait, copy_in, compute, copy_out] = nanos.map(Duration::from_nanos);
        StageDurations {
            receive,
            queue_wait,
            copy_in,
            compute,
            copy_out,
        }
    })
}

fn any_to_gateway() -> impl Strategy<Value = ToGateway> {
    let kind = prop::sample::select(vec![
        FailureKind::ModuleThrew,
        FailureKind::WrongOutput,
        FailureKind::TimedOut,
        FailureKind::OutOfMemory,
    ]);
    prop_oneof![
        (
            hello(),
            any::<[u8; 32]>(),
            any::<u64>(),
            any::<u32>(),
            any::<u32>()
        )
            .prop_map(|(hello, proof, generation, number, batch_size)| {
                let replica = ReplicaId {
                    generation: Generation(generation),
                    number,
                };
                let artifact = ArtifactDigest::from_sha256(proof);
                ToGateway::Challenge(Box::new(Challenge {
                    hello,
                    proof,
                    identity: WorkerIdentity {
                        replica,
                        artifact,
                        batch_size,
                    },
                }))
            }),
        Just(ToGateway::Accept),
        (any::<u32>(), 0..3_usize, any::<[u64; 4]>()).prop_map(
            |(orders, place, [bytes, memory, nanos, cold])| {
                ToGateway::Weights(WeightsReport {
                    orders,
                    place: [
                        WeightsPlace::Warm,
                        WeightsPlace::Resident,
                        WeightsPlace::Cold,
                    ][place],
                    bytes,
                    memory,
                    load: Duration::from_nanos(nanos),
                    cold_load: Duration::from_nanos(cold),
                })
            }
        ),
        (any::<u64>(), vec(any_tensor(), 0..6), any_stages()).prop_map(|(id, outputs, stages)| {
            ToGateway::Result(ResultHeader {
                id: BatchId(id),
                outputs,
                stages,
            })
        }),
        (any::<u64>(), kind, ".{0,100}").prop_map(|(id, kind, message)| {
            ToGateway::Failure(FailureHeader {
                id: BatchId(id),
                kind,
                message,
            })
        }),
        (any::<u64>(), vec(any_tensor(), 0..6), any_stages()).prop_map(|(id, outputs, stages)| {
            let ranges = ranges_of(&outputs);
            let id = BatchId(id);
            ToGateway::SharedResult(
                ResultHeader {
                    id,
                    outputs,
                    stages,
                },
                ranges,
            )
        }),
        any::<u64>().prop_map(ToGateway::Memory),
        Just(ToGateway::Draining),
        ".{0,100}".prop_map(ToGateway::Close),
    ]
}

/// Receives a stream that arrives in pieces of these lengths (the last one over and over), payloads included.
fn receive<M: Incoming>(
    stream: &[u8],
    pieces: &[usize],
    payload_len: impl Fn(&M) -> u64,
) -> Vec<(M, Vec<u8>)> {
    let mut decoder = Decoder::new(u64::MAX);
    let mut received: Vec<(M, Vec<u8>)> = Vec::new();
    let mut payload_missing = 0;
    let mut lengths = pieces
        .iter()
        .copied()
        .chain(std::iter::repeat(*pieces.last().unwrap()));
    let mut rest = stream;
    while !rest.is_empty() {
        let (mut piece, later) = rest.split_at(lengths.next().unwrap().min(rest.len()));
        rest = later;
        while !piece.is_empty() {
            let (payload, after) = piece.split_at(payload_missing.min(piece.len()));
            if let Some((_, bytes)) = received.last_mut() {
                bytes.extend_from_slice(payload);
            }
            payload_missing -= payload.len();
            piece = after;
            if payload_missing == 0
                && let Some(message) = decoder.feed(&mut piece).unwrap()
            {
                payload_missing = payload_len(&message) as usize;
                received.push((message, Vec::new()));
            }
        }
    }
    assert!(!decoder.is_within_message());
    received
}

/// Returns a payload that shows where it was cut.
fn payload(length: u64) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

proptest! {
    #[test]
    fn batches_arrive_whole_in_whatever_pieces(
        messages in vec(any_to_worker(), 1..6),
        pieces in vec(1_usize..200, 1..20),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            message.encode(&mut stream);
            stream.extend(payload(message.payload_len()));
        }
        let expected: Vec<_> = messages.into_iter().map(|m| { let p = payload(m.payload_len()); (m, p) }).collect();
        prop_assert_eq!(receive(&stream, &pieces, ToWorker::payload_len), expected);
    }

    #[test]
    fn answers_arrive_whole_in_whatever_pieces(
        messages in vec(any_to_gateway(), 1..6),
        pieces in vec(1_usize..200, 1..20),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            message.encode(&mut stream);
            stream.extend(payload(message.payload_len()));
        }
        let expected: Vec<_> = messages.into_iter().map(|m| { let p = payload(m.payload_len()); (m, p) }).collect();
        prop_assert_eq!(receive(&stream, &pieces, ToGateway::payload_len), expected);
    }

    #[test]
    fn random_bytes_are_refused_or_awaited_but_never_believed(bytes in vec(any::<u8>(), 0..200)) {
        // Four random bytes are the magic once in 2^32 cases.
        let outcome = decode(&bytes);
        prop_assert!(matches!(outcome, Ok(None) | Err(DecodeError::Magic)), "{:?}", outcome);
    }

    #[test]
    fn damaged_messages_never_panic_nor_exceed_the_limits(
        message in any_to_worker(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = bytes_of(&message);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(Some(message)) = decode(&bytes) {
            prop_assert!(message.payload_len() <= PAYLOAD_LIMIT);
        }
    }
}
