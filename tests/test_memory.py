"""Memory that runs out while a real worker serves: batches of rows that are as long become smaller, and no others."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
from cluster import Cluster, wait_until
from http_admin import request

# Rows of this length are four times as long as those that the worker was warmed up with.
LONG = 64
# So many of them fit into what the model takes.
FITTING = 4
SHORT = 16


def double(address: str, rows: int, columns: int, value: float) -> int:
    """Asks for rows full of a number; the status, of an answer that is right."""
    x = {"name": "x", "datatype": "FP32", "shape": [rows, columns], "data": [value] * (rows * columns)}
    answer = request(address, "POST", "/v2/models/glutton/infer", json.dumps({"inputs": [x]}).encode())
    if answer.status == 200:
        (y,) = json.loads(answer.body)["outputs"]
        assert y["data"] == [2 * value] * (rows * columns)
    return answer.status


def many(address: str, columns: int) -> Counter:
    """The statuses of as many requests at a time as fill batches that are too large."""
    with ThreadPoolExecutor(24) as pool:
        return Counter(pool.map(lambda value: double(address, 1, columns, value), range(120)))


def test_memory_that_runs_out_for_long_rows_costs_no_request_and_leaves_short_ones_alone(
    new_cluster: Callable[..., Cluster], tmp_path: Path
):
    cluster = new_cluster()
    cluster.start_agent("cpu-node", "--devices", "cpu", "--stop-workers-on-exit")
    (node,) = cluster.admin.get("/v1/nodes")
    csv = models.profiles(tmp_path, {"glutton": 5}, kind=node["devices"][0]["kind"])
    assert cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes()).status == 200
    model = models.glutton(tmp_path)
    cluster.admin.register(model.registration, model.file)

    def replica() -> dict | None:
        replicas = cluster.admin.get("/v1/models/glutton")["replicas"]
        known = [replica for replica in replicas if replica["serving"] and replica["capacity"]]
        return known[0] if len(known) == len(replicas) == 1 else None

    before = wait_until(replica, "the replica to serve", limit=120)
    # Warmed up with short rows, it seems to have memory for whatever is planned.
    assert before["capacity"]["batch_size"] == before["batch_size"] > FITTING
    assert many(cluster.inference, LONG) == {200: 120}
    # Rows that come together stay together.
    assert double(cluster.inference, 8, LONG, 1.0) in (500, 503)
    assert double(cluster.inference, 8, SHORT, 1.0) == 200
    assert many(cluster.inference, SHORT) == {200: 120}
    assert many(cluster.inference, LONG) == {200: 120}
    after = replica()
    assert after is not None
    kept = ("id", "batch_size", "capacity", "pid")
    assert [after[field] for field in kept] == [before[field] for field in kept]
