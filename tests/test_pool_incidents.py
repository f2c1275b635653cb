"""What a pool's process costs when it is killed stands in one incident, under its device."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from http_admin import request
from pool_worker import served, workers
from test_parking import WIDTH, import_profiles, perceptron, register

COUNT = 4
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.5] * WIDTH}]}).encode()


@pytest.fixture
def pooled(new_cluster: Callable[..., Cluster], tmp_path: Path) -> Cluster:
    """A node whose process has all four models, which are to answer within 300 ms."""
    cluster = new_cluster()
    cluster.start_agent("node1", "--devices", "cpu", "--own-workers", "0")
    names = [f"model-{number}" for number in range(COUNT)]
    import_profiles(cluster, tmp_path, names)
    for number, name in enumerate(names):
        register(cluster, tmp_path, name, perceptron(number), slo_ms=300)
    wait_until(lambda: served(cluster, COUNT), "all models to be served")
    return cluster


@contextmanager
def clients(cluster: Cluster) -> Iterator[list[Counter]]:
    """Clients that ask all models again and again, with the counts of their answers."""
    ends = threading.Event()
    counts = [Counter() for _ in range(COUNT)]

    def ask(number: int) -> None:
        while not ends.wait(0.01):
            answer = request(cluster.inference, "POST", f"/v2/models/model-{number}/infer", BODY)
            counts[number][answer.status] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(COUNT) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(count[200] > 50 for count in counts), "answers")
        yield counts
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def lost(counts: list[Counter]) -> int:
    return sum(count.total() - count[200] for count in counts)


def test_a_killed_process_is_an_incident_of_its_device_that_counts_what_its_clients_missed(pooled: Cluster):
    with clients(pooled) as counts:
        # Another process may be there so soon that nobody notices.
        while not lost(counts):
            (pid,) = workers(pooled)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: served(pooled, COUNT) and pid not in workers(pooled), "another process")
        answered = [count[200] for count in counts]
        wait_until(lambda: all(count[200] > before + 50 for count, before in zip(counts, answered, strict=True)), "answers of the new process")

    def told() -> dict | None:
        of_device = (incident for incident in pooled.admin.get("/v1/incidents") if incident["root"] == {"device": "node1/cpu0"})
        # An answer that came late is missed, too, and has the status 200.
        return next((incident for incident in of_device if incident["missed_requests"] >= lost(counts)), None)

    incident = wait_until(told, "an incident")
    first, *others = (entry["finding"] for entry in incident["findings"])
    assert first["problem"] == "worker_ended", first
    assert {other["problem"] for other in others} <= {"slo_missed"}, others
    assert {f"model-{number}:1" for number in range(COUNT)} >= {model["model"] for model in incident["missed_by_model"]}


def test_a_stopped_process_is_an_incident_of_its_device_with_what_its_clients_missed_while_it_hung(pooled: Cluster):
    def of_device() -> list[dict]:
        return [incident for incident in pooled.admin.get("/v1/incidents") if incident["root"] == {"device": "node1/cpu0"}]

    with clients(pooled) as counts:
        (pid,) = workers(pooled)
        os.kill(pid, signal.SIGSTOP)
        # The gateway gives up the batch that hangs, of one of its models, after 15 s.
        wait_until(of_device, "an incident", limit=60)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: served(pooled, COUNT) and pid not in workers(pooled), "another process")
        answered = [count[200] for count in counts]
        wait_until(lambda: all(count[200] > before + 50 for count, before in zip(counts, answered, strict=True)), "answers of the new process")

    def told() -> dict | None:
        return next((incident for incident in of_device() if incident["missed_requests"] >= lost(counts)), None)

    incident = wait_until(told, "an incident with all that was missed")
    first, *others = (entry["finding"] for entry in incident["findings"])
    assert first["problem"] == "worker_ended", first
    assert "answered nothing and ended" in first["text"], first
    assert {other["problem"] for other in others} <= {"slo_missed"}, others
    assert {f"model-{number}:1" for number in range(COUNT)} == {model["model"] for model in incident["missed_by_model"]}
    # No member's load is blamed for it.
    assert not [one for one in pooled.admin.get("/v1/findings") if one["problem"] == "overloaded"]
