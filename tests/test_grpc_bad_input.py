"""Clients of gRPC that are broken, greedy or hostile: each is refused or loses its connection, and others are served."""

import gzip
import resource
import socket
import struct
import threading
import time
from pathlib import Path

import grpc
import http2
import numpy as np
import pytest
import tritonclient.grpc as triton
from conftest import BODY_LIMIT, Served
from http2 import DATA, END_HEADERS, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, Connection, frame, head, message
from tritonclient.grpc import service_pb2

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"


def resident(served: Served) -> int:
    """The gateway's memory, in bytes."""
    pages = open(f"/proc/{served.cluster.gateway.pid}/statm").read().split()[1]
    return int(pages) * resource.getpagesize()


def descriptors(served: Served) -> int:
    return len(list(Path(f"/proc/{served.cluster.gateway.pid}/fd").iterdir()))


def infer(rows: int = 1, columns: int = 4) -> bytes:
    """The message of a request to "double"."""
    made = service_pb2.ModelInferRequest(model_name="double")
    made.inputs.add(name="x", datatype="FP32", shape=[rows, columns])
    made.raw_input_contents.append(np.ones((rows, columns), np.float32).tobytes())
    return made.SerializeToString()


@pytest.fixture(autouse=True)
def others_are_served(served: Served):
    """Whatever a test does, the gateway serves afterwards, and has no more memory than before."""
    before = resident(served)
    yield
    assert served.cluster.gateway.is_running(), served.cluster.gateway.said()
    x = np.ones((1, 4), np.float32)
    given = triton.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(x)
    with triton.InferenceServerClient(served.cluster.grpc) as client:
        np.testing.assert_array_equal(client.infer("double", [given], client_timeout=20).as_numpy("y"), 2 * x)
    assert resident(served) - before < 400 << 20


def call(served: Served, path: str, data: bytes, metadata: tuple = ()) -> bytes:
    """The answer to bytes that no client of the protocol would send."""
    with grpc.insecure_channel(served.cluster.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        return channel.unary_unary(path, bytes, bytes)(data, timeout=30, metadata=metadata)


def refused(served: Served, data: bytes, path: str = INFER) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        call(served, path, data)
    return error.value.code().name, error.value.details()


@pytest.mark.parametrize(
    "data, says",
    [
        (b"\xff" * 100, "Protocol Buffers"),
        (b"\x0a\x06double\x2a\xff\xff\xff\x7f", "Protocol Buffers"),
        (b"", "model"),
        (b"\x0a\x02\xff\xfe\x3a\x00", "UTF-8"),
        (infer()[:-3], "cut off"),
        (infer() + b"\x0a\x0csum-of-stuff", "given twice"),
        (b"\x0a\x06double" + b"\x2a\x00" * 100_000, "inputs, which is the limit"),
        (b"\x0a\x06double" + b"\x3a\x00" * 100_000, "raw_input_contents, which is the limit"),
        (b"\x0a\x06double" + b"\x78\x01" * 100_000, "other fields, which is the limit"),
        (b"\x0a\x06double" + b"".join(b"\x22\x04\x0a\x02" + struct.pack(">H", 0x6161 + n) for n in range(1000)), "parameters, which is the limit"),
        (b"\x0b" * 1000, "Protocol Buffers"),
    ],
    ids=["noise", "length", "empty", "utf-8", "cut-off", "two-models", "inputs", "raw", "fields", "parameters", "groups"],
)
def test_bad_messages_are_refused_with_the_reason(served: Served, data: bytes, says: str):
    code, details = refused(served, data)
    assert code == "INVALID_ARGUMENT"
    assert says in details, details


def test_oversize_messages_are_refused_before_they_are_sent(served: Served):
    connection = Connection(served.cluster.grpc)
    # It announces 4 GiB and sends little.
    connection.call(1, INFER, b"\x00\xff\xff\xff\xff" + infer()[:20], end=False)
    (answer,) = [read for read in connection.answer(1) if read[0] == HEADERS]
    assert answer[1] & http2.END_STREAM, "a status without a message"
    connection.close()
    code, details = refused(served, infer(1, BODY_LIMIT // 4 + 10))
    assert (code, f"{BODY_LIMIT} bytes" in details) == ("RESOURCE_EXHAUSTED", True)
    assert refused(served, b"\x0a" + bytes(100_000), LIVE)[0] == "RESOURCE_EXHAUSTED"


def wait_for_room(connection: Connection, stream: int) -> None:
    """Waits until the gateway has read what the stream sent."""
    while connection.read()[:3:2] != (http2.WINDOW_UPDATE, stream):
        pass


def test_a_compressed_bomb_is_refused_within_the_limit(served: Served):
    # A byte more than a message may have.
    bomb = message(gzip.compress(bytes((1 << 28) + 1)), 1)
    connection = Connection(served.cluster.grpc)
    connection.call(1, INFER, bomb[: 100 << 10], end=False, grpc_encoding="gzip")
    wait_for_room(connection, 1)
    connection.data(1, bomb[100 << 10 : 200 << 10], end=False)
    wait_for_room(connection, 1)
    connection.data(1, bomb[200 << 10 :])
    frames = connection.answer(1)
    assert frames and frames[-1][1] & http2.END_STREAM
    connection.close()


def test_unknown_methods_kinds_and_times_are_refused(served: Served):
    assert refused(served, b"", "/inference.GRPCInferenceService/Nothing")[0] == "UNIMPLEMENTED"
    assert refused(served, b"", "/inference.GRPCInferenceService/CudaSharedMemoryStatus")[0] == "UNIMPLEMENTED"
    for more in [{"grpc_timeout": "soon"}, {"grpc_encoding": "snappy"}, {"content_type": "text/html"}]:
        connection = Connection(served.cluster.grpc)
        connection.call(1, INFER, message(infer()), **more)
        frames = connection.answer(1)
        # One frame is the whole answer: a status without a message.
        assert [(read[0], read[1] & http2.END_STREAM) for read in frames] == [(HEADERS, http2.END_STREAM)], more
        connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        bytes(1000),
        http2.PREFACE + frame(DATA, 0, 0, b"x"),
        http2.PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 2, head(LIVE)),
        http2.PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
        http2.PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        http2.PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 7, b"x"),
        http2.PREFACE + frame(SETTINGS, 0, 0) + (1 << 20).to_bytes(3, "big") + bytes([DATA, 0, 0, 0, 0, 1]) + bytes(100),
        http2.PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, head(LIVE)) + frame(PING, 0, 0, bytes(8)),
    ],
    ids=["http1", "zeros", "stream-zero", "even-stream", "hpack", "window-zero", "idle-stream", "huge-frame", "no-continuation"],
)
def test_bad_frames_end_their_connection_alone(served: Served, data: bytes):
    connection = Connection.__new__(Connection)
    host, port = served.cluster.grpc.rsplit(":", 1)
    connection.socket = socket.create_connection((host, int(port)), timeout=20)
    connection.send(data)
    frames = connection.until_end()
    assert all(read[0] in (SETTINGS, GOAWAY, RST_STREAM, PING, WINDOW_UPDATE) for read in frames), frames
    connection.close()


def test_a_head_without_end_is_refused(served: Served):
    connection = Connection(served.cluster.grpc)
    try:
        connection.send(frame(HEADERS, 0, 1, head(LIVE)))
        for number in range(5000):
            field = b"\x00" + http2.text(f"x-{number}") + http2.text("y" * 100)
            connection.send(frame(http2.CONTINUATION, 0, 1, field * 50))
        connection.until_end()
    except (ConnectionError, TimeoutError) as ended:
        assert isinstance(ended, ConnectionError), "the connection is still there"
    connection.close()


def test_a_flood_of_resets_ends_its_connection(served: Served):
    connection = Connection(served.cluster.grpc)
    ended = False
    try:
        for number in range(20_000):
            stream = 2 * number + 1
            connection.send(frame(HEADERS, END_HEADERS, stream, head(INFER)) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
    except ConnectionError:
        ended = True
    connection.socket.settimeout(20)
    frames = connection.until_end() if not ended else []
    goaways = [read for read in frames if read[0] == GOAWAY]
    assert ended or goaways
    connection.close()


def test_ten_thousand_streams_are_no_more_than_the_limit_at_a_time(served: Served):
    connection = Connection(served.cluster.grpc)
    refusals = 0

    def read() -> None:
        nonlocal refusals
        while (got := connection.read()) is not None:
            refusals += got[0] == RST_STREAM

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for number in range(10_000):
            # Heads whose messages never come.
            connection.send(frame(HEADERS, END_HEADERS, 2 * number + 1, head(STREAM)))
    except ConnectionError:
        pass
    deadline = time.monotonic() + 20
    while refusals < 1000 and reader.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert refusals >= 1000 or not reader.is_alive(), f"{refusals} streams were refused"
    connection.close()


def test_streams_that_stop_reading_hold_no_more_than_their_window_and_lose_their_connection(served: Served):
    """Its windows are closed, and it asks for large answers all the same."""
    before = resident(served)
    connections = [Connection(served.cluster.grpc, window=0, timeout=40) for _ in range(4)]
    request = message(infer(8, 3_000))
    begin = time.monotonic()
    for connection in connections:
        for stream in [1, 3]:
            # As much as the windows of the gateway take.
            connection.call(stream, INFER, request)
    for connection in connections:
        frames = connection.until_end()
        assert {read[2] for read in frames if read[0] == HEADERS} == {1, 3}, "both were answered"
        assert not [read for read in frames if read[0] == DATA and read[3]]
        connection.close()
    assert 8 < time.monotonic() - begin < 30, "after --client-timeout-ms"
    assert resident(served) - before < 100 << 20


def test_a_client_that_sends_no_message_is_refused_in_time(served: Served):
    connection = Connection(served.cluster.grpc, timeout=40)
    for stream, path, data in [(1, INFER, None), (3, LIVE, None), (5, INFER, message(infer())[:20]), (7, INFER, b"\x00\x00")]:
        connection.call(stream, path, data, end=False)
    begin = time.monotonic()
    ended = set()
    while ended != {1, 3, 5, 7}:
        kind, flags, stream, _ = connection.read()
        if kind == HEADERS and flags & http2.END_STREAM:
            ended.add(stream)
    assert 5 < time.monotonic() - begin < 30, "after --client-timeout-ms"
    connection.close()


def test_a_stream_goes_on_after_bad_messages_and_ends_at_a_bad_frame(served: Served):
    with grpc.insecure_channel(served.cluster.grpc) as channel:
        stream = channel.stream_stream(STREAM, bytes, service_pb2.ModelStreamInferResponse.FromString)
        noise = b"\x0a\x06double\xff\xff"
        answers = list(stream(iter([infer(), noise, infer()]), timeout=30))
    errors = [bool(answer.error_message) for answer in answers]
    assert errors == [False, True, False]
    connection = Connection(served.cluster.grpc)
    connection.call(1, STREAM, message(infer()) + b"\x07bad!")
    frames = connection.answer(1)
    assert [read[0] for read in frames] == [HEADERS, DATA, HEADERS]
    connection.close()


def test_connections_that_are_gone_leave_nothing(served: Served):
    before = descriptors(served)
    for _ in range(200):
        connection = Connection(served.cluster.grpc)
        connection.call(1, INFER, message(infer(8, 10_000))[:50_000], end=False)
        connection.close()
    deadline = time.monotonic() + 20
    while descriptors(served) > before + 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert descriptors(served) <= before + 5
