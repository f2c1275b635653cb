"""The links between gateway and workers: by shared memory and by TCP, with the same answers."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest
import tritonclient.http as tritonhttp
from cluster import Cluster, wait_until
from conftest import simulated_devices
from http_admin import request

MakeCluster = Callable[..., Cluster]
# Below and above the sizes from which on tensors are shared: a row of 1 KiB, some of 200 KB, one of 4.8 MB.
SHAPES = [(1, 256), (1, 50_000), (5, 50_000), (2, 600_000)]


def shared_mappings(pid: int) -> Counter:
    """How many memory files a process has mapped, by its rights."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Counter(line.split()[1] for line in lines if "/memfd:packhorse" in line)


def memory_used(cluster: Cluster) -> float:
    return cluster.admin.metric("packhorse_memory_used_bytes")


def infer(client: tritonhttp.InferenceServerClient, x: np.ndarray, binary: bool) -> np.ndarray:
    given = tritonhttp.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    wanted = tritonhttp.InferRequestedOutput("y", binary_data=binary)
    return client.infer("double", [given], outputs=[wanted]).as_numpy("y")


@pytest.mark.parametrize("link", ["on", "off"])
def test_both_links_give_the_same_answers(new_cluster: MakeCluster, link: str):
    cluster = new_cluster("--profile-time-limit-ms", "2000", "--shared-memory-links", link)
    cluster.start_agent("node1", "--devices", "cpu", "--stop-workers-on-exit")
    double = models.double(cluster.folder)
    cluster.admin.register(double.registration, double.file)
    cluster.admin.wait_for_state("double", "ready")
    (worker,) = cluster.worker_pids("double")
    expected = {"rw-s": 1, "r--s": 1} if link == "on" else {}
    for pid in (cluster.gateway.pid, worker):
        assert shared_mappings(pid) == expected, pid
    numbers = np.random.default_rng(1)
    client = tritonhttp.InferenceServerClient(cluster.inference, concurrency=4)
    for shape in SHAPES:
        x = numbers.standard_normal(shape, dtype=np.float32)
        for binary in (True, False):
            assert np.array_equal(infer(client, x, binary), 2 * x), (shape, binary)
    # Many at once share batches, each of several ranges.
    xs = [numbers.standard_normal((1, 50_000), dtype=np.float32) for _ in range(32)]
    answers: dict[int, np.ndarray] = {}

    def ask(start: int) -> None:
        with tritonhttp.InferenceServerClient(cluster.inference) as own:
            for i in range(start, len(xs), 4):
                answers[i] = infer(own, xs[i], True)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(answers[i], 2 * x) for i, x in enumerate(xs))
    client.close()
    wait_until(lambda: memory_used(cluster) == 0, "the memory of requests to be free")


def test_a_worker_killed_within_a_batch_leaves_no_memory_and_its_successor_shares_anew(new_cluster: MakeCluster):
    cluster = new_cluster("--lease-ms", "1500")
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": 30}))
    x, y = models.tensor("x", "FP32", [-1, 50_000]), models.tensor("y", "FP32", [-1, 50_000])
    given = models.registration("m", [x], [y], rate_rps=50)
    cluster.admin.register(given, b"the file of m")
    cluster.admin.wait_for_state("m", "ready")
    statuses: list[int] = []
    stopped = threading.Event()
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,50000],"parameters":{"binary_data_size":200000}}]}'
    headers = {"Inference-Header-Content-Length": str(len(head))}

    def ask() -> None:
        while not stopped.is_set():
            answer = request(cluster.inference, "POST", "/v2/models/m/infer", head + bytes(200_000), headers)
            statuses.append(answer.status)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            enough = statuses.count(200) + 20
            wait_until(lambda enough=enough: statuses.count(200) >= enough, "answers")
            (worker,) = cluster.worker_pids("m")
            assert shared_mappings(worker) == {"rw-s": 1, "r--s": 1}
            # Within a batch of 30 ms: six clients keep the worker busy.
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda worker=worker: cluster.worker_pids("m") not in ([], [worker]), "another worker")
        enough = statuses.count(200) + 20
        wait_until(lambda: statuses.count(200) >= enough, "answers of the last worker")
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert set(statuses) <= {200, 503, 504}, Counter(statuses)
    assert shared_mappings(cluster.gateway.pid) == {"rw-s": 1, "r--s": 1}, "the memory of former links is gone"
    wait_until(lambda: memory_used(cluster) == 0, "the memory of requests to be free")


def test_a_gateway_that_starts_again_shares_memory_with_the_workers_that_it_adopts(new_cluster: MakeCluster):
    cluster = new_cluster("--profile-time-limit-ms", "2000")
    cluster.start_agent("node1", "--devices", "cpu", "--stop-workers-on-exit")
    double = models.double(cluster.folder)
    cluster.admin.register(double.registration, double.file)
    cluster.admin.wait_for_state("double", "ready")
    before = cluster.worker_pids("double")
    cluster.gateway.kill()
    cluster.start_gateway()
    wait_until(lambda: request(cluster.inference, "GET", "/v2/models/double/ready").status == 200, "the model")
    assert cluster.worker_pids("double") == before
    x = np.ones((1, 50_000), np.float32)
    with tritonhttp.InferenceServerClient(cluster.inference) as client:
        assert np.array_equal(infer(client, x, True), 2 * x)
    assert shared_mappings(before[0]) == {"rw-s": 1, "r--s": 1}, "the memory of the former link is gone"
