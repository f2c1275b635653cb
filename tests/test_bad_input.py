"""Whatever comes in, the answer is a 4xx that names field and limit, and the next request is served."""

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import quote

import numpy as np
import pytest
from conftest import BODY_LIMIT, Served
from http_admin import Answer, request

ROW = [0.5] * 16


def cases(table: dict[str, tuple]) -> Callable:
    """Runs a test for every row; the arguments follow `served` in the test's signature."""

    def decorate(test):
        names = [name for name in test.__code__.co_varnames[: test.__code__.co_argcount] if name != "served"]
        rows = [row if len(names) > 1 else row[0] for row in table.values()]
        return pytest.mark.parametrize(names if len(names) > 1 else names[0], rows, ids=table.keys())(test)

    return decorate


def tensor(called: str, /, **changes) -> dict:
    given = {"name": called, "datatype": "FP32", "shape": [1, 16], "data": ROW, **changes}
    return {key: value for key, value in given.items() if value is not None}


def body(*inputs: dict, **more) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def with_a(**changes) -> bytes:
    """A request that is right but for input `a`."""
    return body(tensor("a", **changes), tensor("b"))


GOOD = body(tensor("a"), tensor("b"))


def binary(head: dict | bytes, tail: bytes, header_length: int | str | None = None) -> tuple[bytes, dict]:
    """A request with binary tensors, and its headers."""
    head = head if isinstance(head, bytes) else json.dumps(head).encode()
    length = len(head) if header_length is None else header_length
    return head + tail, {"Inference-Header-Content-Length": str(length)}


def sized(name: str, size, **changes) -> dict:
    return tensor(name, data=None, parameters={"binary_data_size": size}, **changes)


@pytest.fixture(autouse=True)
def still_serves(served: Served) -> Iterator[None]:
    """After every test the same worker answers as before."""
    before = served.cluster.worker_pids("sum-and-difference")
    yield
    answer = served.infer("sum-and-difference", GOOD)
    assert answer.status == 200, answer
    assert [output["data"][0] for output in answer.json()["outputs"]] == [1, 0]
    assert served.cluster.worker_pids("sum-and-difference") == before


def check_refused(served: Served, answer: Answer, status: int, *words: str) -> None:
    assert answer.status == status, answer
    for word in words:
        assert word in answer.error, answer.error
    for secret in [str(served.folder), "/src/", ".rs:", "panicked"]:
        assert secret not in answer.error, answer.error
    assert len(answer.error) < 1000, "a refusal is short whatever was sent"


@cases(
    {
        "empty": (b"", []),
        "not JSON": (b"{", ["JSON"]),
        "another JSON": (b"[]", []),
        "a number": (b"7", []),
        "text behind": (GOOD + b"x", ["JSON"]),
        "invalid UTF-8": (GOOD.replace(b'"a"', b'"\xff"'), ["JSON"]),
        "half a surrogate": (GOOD.replace(b'"a"', b'"\\ud800"'), ["name"]),
        "NaN": (GOOD.replace(b"0.5", b"NaN", 1), ["a"]),
        "Infinity": (GOOD.replace(b"0.5", b"Infinity", 1), ["a"]),
        "minus Infinity": (GOOD.replace(b"0.5", b"-Infinity", 1), ["a"]),
        "a number past FP32": (GOOD.replace(b"0.5", b"1e39", 1), ["a", "data[0]"]),
        "a number past all floats": (GOOD.replace(b"0.5", b"1e400", 1), ["a"]),
        "a huge exponent": (GOOD.replace(b"0.5", b"1e" + b"9" * 1000, 1), ["a"]),
        "nested data": (with_a(data="DATA").replace(b'"DATA"', b"[" * 200_000 + b"]" * 200_000), ["a"]),
        "nested data without end": (with_a(data="DATA").replace(b'"DATA"', b"[" * 200_000), []),
        "nested objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, []),
        "no inputs": (b"{}", ["inputs"]),
        "inputs are no list": (b'{"inputs": {}}', ["inputs"]),
        "an input is no object": (b'{"inputs": [1]}', ["inputs[0]"]),
        "no name": (with_a(name=None), ["name"]),
        "a name that is no text": (with_a(name=1), ["name"]),
        "no datatype": (with_a(datatype=None), ["datatype"]),
        "an unknown datatype": (with_a(datatype="FP31"), ["a", "datatype", "FP31"]),
        "another datatype": (with_a(datatype="INT32", data=[1] * 16), ["a", "INT32", "FP32"]),
        "BYTES": (with_a(datatype="BYTES", data=["x"] * 16), ["a", "BYTES"]),
        "no shape": (with_a(shape=None), ["shape"]),
        "a shape that is no list": (with_a(shape=16), ["shape"]),
        "a negative dimension": (with_a(shape=[-1, 16]), ["a", "shape"]),
        "a fractional dimension": (with_a(shape=[1.5, 16]), ["shape"]),
        "a dimension past 64 bits": (with_a(shape=[2**70, 16]), ["shape"]),
        "an overflowing product": (with_a(shape=[2**62, 2**62]), ["a", "shape"]),
        "an overflowing product behind a zero": (with_a(shape=[0, 2**62, 2**62], data=[]), ["a", "shape"]),
        "a huge batch": (with_a(shape=[2**40, 16]), ["a"]),
        "a huge rank": (with_a(shape=[1] * 1000), ["a", "shape"]),
        "another rank": (with_a(shape=[1, 1, 16]), ["a", "shape"]),
        "another dimension": (with_a(shape=[1, 8], data=[0] * 8), ["a", "shape", "[-1,16]"]),
        "too few values": (with_a(data=[0] * 15), ["a", "data"]),
        "too many values": (with_a(data=[0] * 17), ["a", "data"]),
        "ragged rows": (with_a(shape=[2, 16], data=[[0] * 15, [0] * 17]), ["a", "data"]),
        "an empty batch": (body(tensor("a", shape=[0, 16], data=[]), tensor("b", shape=[0, 16], data=[])), ["a", "batch"]),
        "a batch over the maximum": (
            body(tensor("a", shape=[9, 16], data=ROW * 9), tensor("b", shape=[9, 16], data=ROW * 9)),
            ["a", "9", "8"],
        ),
        "unequal rows": (body(tensor("a"), tensor("b", shape=[2, 16], data=ROW * 2)), ["b", "rows"]),
        "no data": (with_a(data=None), ["a", "data"]),
        "a missing input": (body(tensor("a")), ["b", "missing"]),
        "an extra input": (body(tensor("a"), tensor("b"), tensor("c")), ["c"]),
        "an input twice": (body(tensor("a"), tensor("a"), tensor("b")), ["a", "twice"]),
        "a thousand inputs": (body(*[tensor(f"x{i}") for i in range(1000)]), []),
        "an unknown output": (body(tensor("a"), tensor("b"), outputs=[{"name": "product"}]), ["product"]),
        "an output twice": (body(tensor("a"), tensor("b"), outputs=[{"name": "sum"}] * 2), ["sum", "twice"]),
        "a negative timeout": (body(tensor("a"), tensor("b"), parameters={"timeout": -1}), ["timeout"]),
        "a timeout that is text": (body(tensor("a"), tensor("b"), parameters={"timeout": "1"}), ["timeout"]),
        "a priority that is text": (body(tensor("a"), tensor("b"), parameters={"priority": "high"}), ["priority"]),
        "shared memory": (with_a(data=None, parameters={"shared_memory_region": "x"}), ["a"]),
        "an id that is no text": (body(tensor("a"), tensor("b"), id=7), ["id"]),
        "binary size without its header": (body(sized("a", 64), tensor("b")) + bytes(64), []),
    }
)
def test_bad_json(served: Served, sent: bytes, words: list[str]):
    check_refused(served, served.infer("sum-and-difference", sent), 400, *words)


@cases(
    {
        "nested parameters": (GOOD[:-1] + b', "parameters": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",),
        "a timeout over a minute": (body(tensor("a"), tensor("b"), parameters={"timeout": 2**63}),),
        "parameters nobody knows": (body(tensor("a"), tensor("b"), parameters={"triton_x": 1, "y": {"z": [None]}}),),
        "fields nobody knows": (body(tensor("a", comment="x"), tensor("b"), comment="y"),),
    }
)
def test_what_the_protocol_lets_pass(served: Served, sent: bytes):
    assert served.infer("sum-and-difference", sent).status == 200


A, B = sized("a", 64), sized("b", 64)


@cases(
    {
        "truncated": (*binary({"inputs": [A, B]}, bytes(127)), ["b", "binary_data_size"]),
        "nothing behind the JSON": (*binary({"inputs": [A, B]}, b""), ["a", "binary_data_size"]),
        "bytes left over": (*binary({"inputs": [A, B]}, bytes(129)), ["no bytes after"]),
        "a header length past the body": (*binary({"inputs": [A, B]}, bytes(128), 10_000), ["Header"]),
        "a header length within the JSON": (*binary({"inputs": [A, B]}, bytes(128), 10), ["byte 10"]),
        "a negative header length": (*binary({"inputs": [A, B]}, bytes(128), -1), ["Header"]),
        "a header length past 64 bits": (*binary({"inputs": [A, B]}, bytes(128), 2**65), ["Header"]),
        "a header length that is no number": (*binary({"inputs": [A, B]}, bytes(128), "0x10"), ["Header"]),
        "a size unlike the shape": (*binary({"inputs": [sized("a", 60), B]}, bytes(124)), ["a", "60", "64"]),
        "a size past everything": (*binary({"inputs": [sized("a", 2**63), B]}, bytes(128)), ["a"]),
        "sizes that overflow": (*binary({"inputs": [sized("a", 2**64 - 64), B]}, bytes(128)), ["a"]),
        "a negative size": (*binary({"inputs": [sized("a", -64), B]}, bytes(128)), ["a", "binary_data_size"]),
        "a size that is text": (*binary({"inputs": [sized("a", "64"), B]}, bytes(128)), ["a", "binary_data_size"]),
        "binary and JSON data": (*binary({"inputs": [{**A, "data": ROW}, B]}, bytes(128)), ["a"]),
        "a raw tensor for two inputs": (bytes(128), {"Inference-Header-Content-Length": "0"}, []),
    }
)
def test_bad_binary(served: Served, sent: bytes, headers: dict, words: list[str]):
    check_refused(served, served.infer("sum-and-difference", sent, headers), 400, *words)


def test_a_truth_value_is_a_zero_or_a_one(served: Served):
    given = {"name": "in_BOOL", "datatype": "BOOL", "shape": [1, 4], "parameters": {"binary_data_size": 4}}
    sent, headers = binary({"inputs": [given]}, b"\0\1\2\0")
    check_refused(served, served.infer("identity", sent, headers), 400, "in_BOOL")


def test_a_raw_tensor_is_the_only_input_of_its_model(served: Served):
    image = np.zeros((2, 3, 32, 32), np.float32).tobytes()
    headers = {"Inference-Header-Content-Length": "0"}
    answer = served.infer("convolutions", image, headers)
    assert answer.status == 200, answer
    check_refused(served, served.infer("convolutions", image[:-1], headers), 400)


BOMB = gzip.compress(b" " * (BODY_LIMIT * 50))


@cases(
    {
        "unknown": (GOOD, "br", 415, ["br"]),
        "made up": (GOOD, "packhorse", 415, []),
        "not gzip": (GOOD, "gzip", 400, []),
        "not deflate": (GOOD, "deflate", 400, []),
        "half of it": (gzip.compress(GOOD)[:-20], "gzip", 400, []),
        "a wrong checksum": (gzip.compress(GOOD)[:-8] + bytes(8), "gzip", 400, []),
        "a bomb": (BOMB, "gzip", 413, [str(BODY_LIMIT)]),
        "a deflate bomb": (zlib.compress(b" " * (BODY_LIMIT * 50)), "deflate", 413, [str(BODY_LIMIT)]),
        "twice": (gzip.compress(gzip.compress(GOOD)), "gzip, gzip", 415, []),
    }
)
def test_bad_compression(served: Served, sent: bytes, encoding: str, status: int, words: list[str]):
    answer = served.infer("sum-and-difference", sent, {"Content-Encoding": encoding})
    check_refused(served, answer, status, *words)


def test_the_header_length_counts_inflated_bytes(served: Served):
    sent, headers = binary({"inputs": [A, B]}, bytes(128))
    answer = served.infer("sum-and-difference", gzip.compress(sent), {**headers, "Content-Encoding": "gzip"})
    assert answer.status == 200, answer


def test_a_body_over_the_limit_is_refused_before_it_is_sent(served: Served):
    with socket.create_connection(served.address.split(":"), timeout=10) as connection:
        head = "POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        connection.sendall(f"{head}content-length: {BODY_LIMIT + 1}\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_over_the_limit_is_refused(served: Served):
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(served.address.split(":"), timeout=10) as connection:
        connection.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            for _ in range(BODY_LIMIT // 0x10000 + 1):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@cases(
    {
        "unknown": ("unheard-of",),
        "another folder": ("../../etc/passwd",),
        "another folder, escaped": ("..%2F..%2Fetc%2Fpasswd",),
        "escaped twice": ("double%252F..",),
        "dots": ("%2e%2e",),
        "a slash": ("double%2Finfer",),
        "a NUL": ("double%00",),
        "a line break": ("double%0d%0aX-Evil:%201",),
        "no UTF-8": ("double%ff",),
        "a space": ("double%20",),
        "too long": ("d" * 129,),
        "far too long": ("d" * 5000,),
        "empty": ("",),
        "markup": (quote("<script>"),),
    }
)
def test_names_that_are_no_model(served: Served, name: str):
    answer = served.infer(name, GOOD)
    check_refused(served, answer, answer.status)
    assert answer.status in (400, 404), answer


@pytest.mark.parametrize("version", ["0", "2", "-1", "1.0", "x", "99999999999999999999", "%31%2F"])
def test_versions_that_are_none(served: Served, version: str):
    answer = request(served.address, "POST", f"/v2/models/double/versions/{version}/infer", GOOD)
    check_refused(served, answer, answer.status)
    assert answer.status in (400, 404), answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/double/infer", 405),
        ("DELETE", "/v2/models/double", 405),
        ("POST", "/v2/health/ready", 405),
        ("GET", "/", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v1/nodes", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v2/models/double/../../../etc/passwd", 404),
    ],
)
def test_paths_and_methods_that_are_none(served: Served, method: str, path: str, status: int):
    check_refused(served, request(served.address, method, path), status)


def test_inference_is_not_on_the_admin_listener(served: Served):
    for method, path in [("GET", "/v2"), ("GET", "/v2/models/double"), ("POST", "/v2/models/double/infer")]:
        check_refused(served, served.admin.call(method, path, GOOD if method == "POST" else None), 404)


def test_a_module_that_throws_is_a_500_and_lives_on(served: Served):
    before = served.cluster.worker_pids("moody")
    moods = {"fine": 0.0, "throws": -1.0, "another shape": 1.0}
    for mood, number in moods.items():
        sent = body({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]})
        answer = served.infer("moody", sent)
        assert answer.status == (200 if mood == "fine" else 500), (mood, answer)
        if mood == "throws":
            assert "told to throw" in answer.error
        if mood == "another shape":
            assert "y" in answer.error and "[1,3]" in answer.error.replace(" ", "")
    assert served.infer("moody", body({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.0]})).status == 200
    assert served.cluster.worker_pids("moody") == before
