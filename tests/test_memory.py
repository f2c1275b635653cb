"""Memory that runs out while a real worker serves: the batches become smaller, and so does what is planned."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
from cluster import Cluster, wait_until
from http_admin import request

COLUMNS = 64
# So many rows of that length fit into what the model takes.
FITTING = 4


def double(address: str, rows: int, value: float) -> int:
    """Asks for rows full of a number; the status, of an answer that is right."""
    x = {"name": "x", "datatype": "FP32", "shape": [rows, COLUMNS], "data": [value] * (rows * COLUMNS)}
    answer = request(address, "POST", "/v2/models/glutton/infer", json.dumps({"inputs": [x]}).encode())
    if answer.status == 200:
        (y,) = json.loads(answer.body)["outputs"]
        assert y["data"] == [2 * value] * (rows * COLUMNS)
    return answer.status


def many(address: str) -> Counter:
    """The statuses of as many requests at a time as fill batches that are too large."""
    with ThreadPoolExecutor(24) as pool:
        return Counter(pool.map(lambda value: double(address, 1, value), range(120)))


def test_memory_that_runs_out_makes_batches_and_the_plan_smaller_and_costs_no_request_of_one_row(
    new_cluster: Callable[..., Cluster], tmp_path: Path
):
    cluster = new_cluster()
    cluster.start_agent("cpu-node", "--devices", "cpu", "--stop-workers-on-exit")
    (node,) = cluster.admin.get("/v1/nodes")
    csv = models.profiles(tmp_path, {"glutton": 5}, kind=node["devices"][0]["kind"])
    assert cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes()).status == 204
    model = models.glutton(tmp_path)
    cluster.admin.register(model.registration, model.file)

    def replica() -> dict | None:
        replicas = cluster.admin.get("/v1/models/glutton")["replicas"]
        known = [replica for replica in replicas if replica["serving"] and replica["capacity"]]
        return known[0] if len(known) == len(replicas) == 1 else None

    before = wait_until(replica, "the replica to serve", limit=120)
    # Warmed up with short rows, it seems to have memory for whatever is planned.
    assert before["capacity"]["batch_size"] == before["batch_size"] > FITTING
    assert many(cluster.inference) == {200: 120}
    # Rows that come together stay together.
    assert double(cluster.inference, 8, 1.0) in (500, 503)

    def smaller() -> dict | None:
        now = replica()
        return now if now and now["batch_size"] <= FITTING else None

    after = wait_until(smaller, "a smaller replica", limit=60)
    assert after["capacity"]["batch_size"] == after["batch_size"]
    reason = f"glutton:1 has memory for batches of {FITTING} on "
    assert any(reason in plan["reason"] for plan in cluster.admin.get("/v1/plans"))
    assert many(cluster.inference) == {200: 120}
