"""Clients that are slow or leave, queues that are full, modules that take too long."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median

import models
import pytest
from cluster import Cluster, is_running, wait_until
from http_admin import Answer, request
from load import REQUEST

MakeCluster = Callable[..., Cluster]


def infer(cluster: Cluster, model: str = "m", timeout_us: int | None = None, body: bytes = REQUEST) -> Answer:
    if timeout_us is not None:
        body = json.dumps({**json.loads(body), "parameters": {"timeout": timeout_us}}).encode()
    return request(cluster.inference, "POST", f"/v2/models/{model}/infer", body)


def begin(cluster: Cluster, text: str) -> socket.socket:
    """A connection that has sent this much."""
    connection = socket.create_connection(cluster.inference.split(":"), timeout=20)
    connection.sendall(text.encode())
    return connection


@pytest.mark.parametrize(
    "part",
    [
        "POST /v2/models/m/in",
        "POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
        "POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["head", "body", "chunks"],
)
def test_a_request_that_does_not_go_on_is_ended(simulated: MakeCluster, part: str):
    cluster = simulated({"m": 1}, "--client-timeout-ms", "500")
    slow = [begin(cluster, part) for _ in range(50)]
    assert infer(cluster).status == 200, "others are served meanwhile"
    for connection in slow:
        answer = connection.recv(4096)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408 "), answer
        connection.close()
    assert infer(cluster).status == 200


def test_clients_that_leave_take_their_requests_out_of_the_queue(simulated: MakeCluster):
    # `exclusive` has one replica on one device, so that 18 of the 20 wait.
    cluster = simulated({"m": 300}, "--policy", "exclusive", max_batch_size=1)
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(REQUEST)}\r\n\r\n"
    waiting = [begin(cluster, head + REQUEST.decode()) for _ in range(20)]
    pending = lambda: cluster.admin.metric("nv_inference_pending_request_count", model="m")
    wait_until(lambda: pending() >= 15, "the requests to wait")
    for connection in waiting:
        connection.close()
    wait_until(lambda: pending() == 0, "the queue to be empty")
    wait_until(lambda: infer(cluster).status == 200, "an answer")
    assert cluster.admin.metric("nv_inference_exec_count", model="m") < 10, "what nobody waits for is not computed"


def test_more_than_can_make_its_deadline_is_refused_at_once(simulated: MakeCluster):
    """A batch of 8 takes 200 ms: of 200 requests at once that want to be answered within 1 s, most are hopeless."""
    cluster = simulated({"m": 200}, slo_ms=1000)
    assert infer(cluster).status == 200

    def timed(_) -> tuple[Answer, float]:
        start = time.monotonic()
        return infer(cluster), time.monotonic() - start

    with ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(timed, range(200)))
    statuses = {answer.status for answer, _ in answers}
    assert statuses <= {200, 503, 504} and {200, 503} <= statuses, statuses
    refused = [(answer, took) for answer, took in answers if answer.status == 503]
    for answer, _ in refused:
        assert int(answer.headers["retry-after"]) >= 0
        assert answer.error
    answered = [took for answer, took in answers if answer.status == 200]
    assert median(took for _, took in refused) < median(answered), "a quick no"


def test_a_timeout_that_nobody_can_make_is_refused(simulated: MakeCluster):
    cluster = simulated({"m": 200})
    answer = infer(cluster, timeout_us=20_000)
    assert answer.status == 503
    assert "retry-after" in answer.headers
    assert infer(cluster, timeout_us=2_000_000).status == 200


def test_a_model_without_a_replica_says_so(new_cluster: MakeCluster):
    cluster = new_cluster()
    cluster.admin.register(models.simulated("m"), b"the file of m")
    answer = infer(cluster)
    assert answer.status == 503
    assert "retry-after" in answer.headers
    assert "m" in answer.error
    assert request(cluster.inference, "GET", "/v2/models/m/ready").status == 503
    (entry,) = request(cluster.inference, "POST", "/v2/repository/index").json()
    assert entry["name"] == "m" and entry["state"] != "READY" and entry["reason"]


def test_a_model_may_have_a_shorter_queue_than_the_gateway_has(simulated: MakeCluster):
    # One replica, which `exclusive` cannot have more of on one device, with two batches of one request.
    cluster = simulated({"m": 2000}, "--policy", "exclusive", max_batch_size=1, queue_limit=2, slo_ms=60_000)
    pending = lambda: cluster.admin.metric("nv_inference_pending_request_count", model="m")
    with ThreadPoolExecutor(5) as threads:
        accepted = []
        for waiting in (0, 0, 1, 2):
            accepted.append(threads.submit(infer, cluster))
            wait_until(lambda: len(cluster.worker_pids("m")) == 1 and pending() == waiting, "the request to be where it waits")
        refused = infer(cluster)
        assert refused.status == 503 and "queue_limit is 2" in refused.error, refused
        assert cluster.admin.call("PATCH", "/v1/models/m", {"queue_limit": 3}).status == 200
        wait_until(lambda: cluster.admin.get("/v1/models/m")["queue_limit"] == 3, "the limit to be shown")
        accepted.append(threads.submit(infer, cluster))
        assert [answer.result().status for answer in accepted] == [200] * 5
    cluster.gateway.stop()
    cluster.start_gateway()
    assert cluster.admin.get("/v1/models/m")["queue_limit"] == 3


@pytest.fixture
def spinning(new_cluster: MakeCluster, tmp_path) -> Iterator[Cluster]:
    """A module that takes as long as it is told, on the CPU; its workers end a batch after three seconds."""
    cluster = new_cluster("--profile-time-limit-ms", "100")
    cluster.start_agent("node1", "--devices", "cpu", "--batch-limit-ms", "3000")
    spin = models.spin(tmp_path)
    cluster.admin.register(spin.registration, spin.file)
    cluster.admin.wait_for_state("spin", "ready")
    return cluster


def spin(cluster: Cluster, count: int, timeout_us: int | None = None) -> Answer:
    given = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [count]}]}
    return infer(cluster, "spin", timeout_us, json.dumps(given).encode())


def test_a_module_that_never_returns_is_ended_and_its_worker_replaced(spinning: Cluster):
    (before,) = spinning.worker_pids("spin")
    answer = spin(spinning, -1)
    assert answer.status in (500, 503, 504), answer
    assert answer.error
    wait_until(lambda: not is_running(before), "the worker to end")
    wait_until(lambda: spin(spinning, 10).status == 200, "another worker to answer", limit=60)
    (after,) = spinning.worker_pids("spin")
    assert after != before


def keep_busy(cluster: Cluster, threads: ThreadPoolExecutor, seconds: float) -> list[Future[Answer]]:
    """Three requests that take so long each: two are at the worker when this returns, and one is in the queue."""
    count = calibrate(cluster, seconds)
    slow = [threads.submit(spin, cluster, count) for _ in range(3)]
    wait_until(
        lambda: cluster.admin.metric("nv_inference_pending_request_count", model="spin") == 1, "the worker to be busy"
    )
    return slow


def test_what_expires_behind_a_slow_batch_is_told_so(spinning: Cluster):
    with ThreadPoolExecutor(16) as threads:
        slow = keep_busy(spinning, threads, seconds=1)
        behind = [threads.submit(spin, spinning, 0, 300_000) for _ in range(6)]
        answers = [answer.result() for answer in behind]
        assert [answer.result().status for answer in slow] == [200, 200, 200]
    statuses = {answer.status for answer in answers}
    assert statuses <= {503, 504}, answers
    assert 504 in statuses, "somebody was accepted, and expired in the queue"


def calibrate(cluster: Cluster, seconds: float) -> int:
    """How far the module counts in that time."""
    count = 1000
    while True:
        start = time.monotonic()
        assert spin(cluster, count).status == 200
        took = time.monotonic() - start
        if took > 0.2:
            return int(count * seconds / took)
        count *= 4


def test_a_removed_model_answers_what_is_in_flight_and_its_worker_ends(spinning: Cluster):
    (pid,) = spinning.worker_pids("spin")
    with ThreadPoolExecutor(3) as threads:
        slow = keep_busy(spinning, threads, seconds=1)
        assert spinning.admin.call("DELETE", "/v1/models/spin").status == 200
        statuses = sorted(answer.result().status for answer in slow)
    assert statuses[:2] == [200, 200], "the two that were at the worker"
    assert statuses[2] in (404, 503), "the one that was in the queue"
    wait_until(lambda: not is_running(pid), "the worker to end")
    assert spin(spinning, 0).status == 404


def test_a_stopped_gateway_answers_what_it_has_accepted(spinning: Cluster):
    with ThreadPoolExecutor(3) as threads:
        slow = keep_busy(spinning, threads, seconds=1)
        assert spinning.gateway.stop() == 0
        assert [answer.result().status for answer in slow] == [200, 200, 200]


def test_a_stopped_agent_with_stop_workers_on_exit_leaves_nothing(simulated: MakeCluster):
    cluster = simulated({"m": 10, "n": 10})
    pids = cluster.worker_pids("m") + cluster.worker_pids("n")
    cluster.agents["node1"].kill()
    agent = cluster.start_agent("node1", *cluster.agent_flags, "--stop-workers-on-exit")
    wait_until(lambda: cluster.worker_pids("m") + cluster.worker_pids("n") == pids, "adoption")
    agent.popen.send_signal(signal.SIGINT)
    assert agent.popen.wait(20) == 0
    assert not any(is_running(pid) for pid in pids)
