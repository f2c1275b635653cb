"""Traces of requests, as a receiver of OpenTelemetry gets them."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import Cluster, wait_until
from http_admin import Answer, request
from load import REQUEST
from otlp import ERROR, Receiver

MakeCluster = Callable[..., Cluster]

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def infer(cluster: Cluster, model: str = "m", headers: dict | None = None, body: bytes = REQUEST) -> Answer:
    return request(cluster.inference, "POST", f"/v2/models/{model}/infer", body, headers)


def traced(cluster: Cluster) -> float:
    return cluster.admin.metric("packhorse_traces_exported_total")


def test_a_request_and_its_batch_become_spans_that_are_linked(simulated: MakeCluster, receiver: Receiver):
    cluster = simulated({"m": 60}, "--otlp-endpoint", receiver.url, "--otlp-service-name", "east", "--trace-sample", "1")
    # The first is alone in its batch; the others wait for it and share one.
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda number: infer(cluster, headers={"x-request-id": f"order-{number}"}), range(5)))
    assert {answer.status for answer in answers} == {200}
    wait_until(lambda: len(receiver.roots("infer")) == 5, "five traces")
    (view,) = cluster.admin.get("/v1/models/m")["replicas"]

    requests = {span.attributes["request.id"]: span for span in receiver.roots("infer")}
    assert set(requests) == {f"order-{number}" for number in range(5)}
    batches = {(span.trace, span.span.span_id): span for span in receiver.roots("batch")}
    for answer in answers:
        span = requests[answer.headers["x-request-id"]]
        assert answer.headers["traceparent"] == f"00-{span.trace}-{span.span.span_id.hex()}-01"
        assert span.service == "east"
        assert span.span.kind == span.span.SPAN_KIND_SERVER
        assert span.span.parent_span_id == b""
        assert span.attributes | {"request.id": ""} == {
            "model.name": "m",
            "model.version": "1",
            "request.id": "",
            "request.rows": 1,
            "request.outcome": "answered",
            "request.slo_ms": span.attributes["request.slo_ms"],
            "batch.id": span.attributes["batch.id"],
            "batch.rows": span.attributes["batch.rows"],
            "replica.id": view["id"],
            "device.id": view["device"],
        }
        parts = receiver.children(span)
        assert [part.name for part in parts] == ["read", "inbox", "queue", "in_batch", "answer"]
        covers_without_gaps(span, parts)
        (link,) = span.span.links
        batch = batches[link.trace_id.hex(), link.span_id]
        assert batch.trace != span.trace
        assert batch.attributes["batch.id"] == span.attributes["batch.id"]
        assert batch.attributes["model.name"] == "m" and batch.attributes["replica.id"] == view["id"]
        assert parts[3].ms == pytest.approx(batch.ms, abs=0.01)

    # Every batch once, though most have several requests.
    rows = [batch.attributes["batch.rows"] for batch in batches.values()]
    assert len(receiver.roots("batch")) == len(batches) < 5 and sum(rows) == 5, rows
    for batch in batches.values():
        assert batch.span.parent_span_id == b"" and not batch.span.links
        parts = receiver.children(batch)
        names = ["network", "worker_queue", "copy_in", "compute", "copy_out", "network"]
        assert sorted(part.name for part in parts) == sorted(names)
        covers_without_gaps(batch, parts)
        (compute,) = [part for part in parts if part.name == "compute"]
        assert compute.ms >= 59
    now = time.time_ns()
    assert all(now - 60e9 < span.span.start_time_unix_nano <= span.span.end_time_unix_nano < now for span in receiver.spans)


def covers_without_gaps(whole, parts) -> None:
    """Every part begins where one before it ends, and together they are the whole."""
    ends = {part.span.end_time_unix_nano for part in parts} | {whole.span.start_time_unix_nano}
    assert all(part.span.start_time_unix_nano in ends for part in parts)
    assert whole.span.end_time_unix_nano in ends
    assert sum(part.ms for part in parts) == pytest.approx(whole.ms, abs=0.001)


def test_the_trace_of_a_client_is_continued_with_its_choice(simulated: MakeCluster, receiver: Receiver):
    cluster = simulated({"m": 1}, "--otlp-endpoint", receiver.url, "--trace-sample", "1")
    unwanted = infer(cluster, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"})
    wanted = infer(cluster, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"})
    wait_until(lambda: receiver.roots("infer"), "a trace")
    (span,) = receiver.roots("infer")
    assert (span.trace, span.span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.attributes["request.id"] == wanted.headers["x-request-id"] == "mine"
    assert wanted.headers["traceparent"] == f"00-{TRACE}-{span.span.span_id.hex()}-01"
    assert re.fullmatch(f"00-{'a' * 32}-[0-9a-f]{{16}}-00", unwanted.headers["traceparent"])
    assert re.fullmatch("[0-9a-f]{16}", unwanted.headers["x-request-id"])
    for trace, answer in [(TRACE, wanted), ("a" * 32, unwanted)]:
        (found,) = cluster.admin.get(f"/v1/requests?id={trace}")
        assert (found["trace_id"], found["request_id"]) == (trace, answer.headers["x-request-id"])


def test_of_an_unsampled_load_only_the_missed_requests_are_exported(simulated: MakeCluster, receiver: Receiver):
    cluster = simulated({"m": 20}, "--otlp-endpoint", receiver.url, "--trace-sample", "0")
    assert all(infer(cluster).status == 200 for _ in range(5))
    hopeless = json.dumps(json.loads(REQUEST) | {"parameters": {"timeout": 1}}).encode()
    missed = infer(cluster, headers={"x-request-id": "hopeless"}, body=hopeless)
    assert missed.status in (503, 504), missed
    assert infer(cluster).status == 200
    wait_until(lambda: traced(cluster) == 1, "the trace of the missed request")
    (span,) = receiver.roots("infer")
    assert span.attributes["request.id"] == "hopeless"
    assert span.attributes["request.outcome"] in ("expired", "refused"), span.attributes
    assert span.span.status.code == ERROR and span.span.status.message
    assert not span.span.links and "batch.id" not in span.attributes
    names = [part.name for part in receiver.children(span)]
    assert names == ["read", "inbox", "queue"]
    assert cluster.admin.metric("packhorse_traces_dropped_total") == 0


def test_without_a_receiver_requests_are_unharmed_and_drops_are_counted(simulated: MakeCluster):
    with socket.socket() as reserved:
        # Bound but not listening: connections are refused.
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        cluster = simulated({"m": 1}, "--otlp-endpoint", url, "--trace-sample", "1")
        for _ in range(2):
            before = cluster.admin.metric("packhorse_traces_dropped_total", cause="receiver")
            assert all(infer(cluster).status == 200 for _ in range(20))
            dropped = lambda: cluster.admin.metric("packhorse_traces_dropped_total", cause="receiver")  # noqa: E731
            wait_until(lambda: dropped() == before + 20, "twenty dropped traces")
    assert traced(cluster) == 0
    assert cluster.gateway.said().count("traces are dropped") == 1


def test_a_receiver_that_refuses_is_told_in_the_log(simulated: MakeCluster):
    with Receiver(status=503) as receiver:
        cluster = simulated({"m": 1}, "--otlp-endpoint", receiver.url, "--trace-sample", "1")
        assert infer(cluster).status == 200
        wait_until(lambda: cluster.admin.metric("packhorse_traces_dropped_total", cause="receiver") == 1, "a dropped trace")
        assert "503" in cluster.gateway.said()


def test_the_last_traces_leave_before_the_gateway_ends(simulated: MakeCluster, receiver: Receiver):
    cluster = simulated({"m": 1}, "--otlp-endpoint", receiver.url, "--trace-sample", "1")
    for _ in range(3):
        assert infer(cluster).status == 200
    assert cluster.gateway.stop() == 0
    assert len(receiver.roots("infer")) == 3


def test_without_a_tracer_answers_have_ids_and_errors_are_logged_with_them(simulated: MakeCluster):
    cluster = simulated({"m": 1}, "--log", "info,packhorse_gateway::api=debug", "--log-format", "json")
    answer = infer(cluster)
    assert answer.status == 200 and "traceparent" not in answer.headers
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
    assert infer(cluster, headers={"x-request-id": "with spaces"}).headers["x-request-id"] != "with spaces"
    assert infer(cluster, model="absent", headers={"x-request-id": "404"}).headers["x-request-id"] == "404"
    broken = infer(cluster, headers={"x-request-id": "broken-1"}, body=b"{}")
    assert (broken.status, broken.headers["x-request-id"]) == (400, "broken-1")
    lines = [json.loads(line) for line in cluster.gateway.said().splitlines() if "broken-1" in line]
    (line,) = lines
    assert (line["request.id"], line["model.name"], line["http.status"]) == ("broken-1", "m:1", 400), line
    assert line["error"] == broken.error
