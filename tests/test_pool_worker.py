"""Models that share a worker process: they come, go, crash and are adopted, with the agent and the gateway as they are."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import models
import pytest
import torch
from cluster import Cluster, is_running, processes_of, wait_until
from http_admin import request
from load import REQUEST, Load

# More than one model of the CPU share a process.
FLAGS = ["--devices", "cpu", "--own-workers", "1", "--batch-limit-ms", "2000"]


class Times(torch.nn.Module):
    """`x` times a factor. A negative number makes it hang."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.min()) < -1e6:
            steps = 0
            while True:
                steps += 1
        return x * self.factor


@pytest.fixture
def pooled(new_cluster: Callable[..., Cluster], tmp_path: Path) -> Cluster:
    """A node with five models, which share a process."""
    cluster = new_cluster("--profile-time-limit-ms", "300")
    cluster.start_agent("node1", *FLAGS)
    for factor in range(1, 6):
        register(cluster, tmp_path, factor)
    for factor in range(1, 6):
        cluster.admin.wait_for_state(f"times-{factor}", "ready")
    wait_until(lambda: settled(cluster), "the models to be measured and served")
    return cluster


def register(cluster: Cluster, folder: Path, factor: int) -> None:
    file = folder / f"times-{factor}.pt"
    torch.jit.script(Times(float(factor)).eval()).save(file)
    inputs, outputs = ([{"name": name, "datatype": "FP32", "shape": [-1, 4]}] for name in "xy")
    registration = {"name": f"times-{factor}", "inputs": inputs, "outputs": outputs, "slo_ms": 500, "max_batch_size": 4}
    cluster.admin.register(registration, file)


def settled(cluster: Cluster) -> bool:
    shown = cluster.admin.get("/v1/models")
    return all(model["state"] == "ready" and model["profiled_on"] and len(model["replicas"]) == 1 for model in shown)


def answer(cluster: Cluster, factor: int, x: float = 1.0):
    body = json.loads(REQUEST)
    body["inputs"][0]["data"] = [x, 2, 3, 4]
    return request(cluster.inference, "POST", f"/v2/models/times-{factor}/infer", json.dumps(body).encode())


def check_answers(cluster: Cluster) -> None:
    for factor in range(1, 6):
        given = answer(cluster, factor)
        assert given.status == 200, given
        assert given.json()["outputs"][0]["data"] == [factor * x for x in (1.0, 2.0, 3.0, 4.0)]


def pids(cluster: Cluster) -> dict[str, int]:
    """The worker process of each model that has one."""
    shown = cluster.admin.get("/v1/models")
    return {model["name"]: pid for model in shown for pid in cluster.worker_pids(model["name"])}


def pool_of(cluster: Cluster) -> int:
    """The process of all models."""
    (pool,) = set(pids(cluster).values())
    return pool


def test_many_models_share_a_process_and_each_answers_for_itself(pooled: Cluster, tmp_path: Path):
    pool = pool_of(pooled)
    for name in pids(pooled):
        (replica,) = pooled.admin.get(f"/v1/models/{name}")["replicas"]
        assert replica["worker"] == "pool"
    check_answers(pooled)
    # One leaves, and another comes, without a word to the others.
    shared = [name for name, pid in pids(pooled).items() if pid == pool]
    with Load(pooled.inference, shared[0]) as load:
        wait_until(lambda: load.answered() > 20, "answers")
        assert pooled.admin.call("DELETE", f"/v1/models/{shared[1]}").status == 200
        register(pooled, tmp_path, 7)
        pooled.admin.wait_for_state("times-7", "ready")
        assert answer(pooled, 7).json()["outputs"][0]["data"][0] == 7.0
        assert pooled.worker_pids("times-7") == [pool]
    assert set(load.counts()) == {200}, load.counts()


def test_a_pool_worker_that_is_killed_loses_no_request_and_comes_back(pooled: Cluster):
    pool = pool_of(pooled)
    name = next(name for name, pid in pids(pooled).items() if pid == pool)
    with Load(pooled.inference, name) as load:
        wait_until(lambda: load.answered() > 20, "answers")
        os.kill(pool, signal.SIGKILL)
        wait_until(lambda: len(pids(pooled)) == 5 and pool not in pids(pooled).values(), "another process")
        answered = load.answered()
        wait_until(lambda: load.answered() > answered + 20, "answers of the new process")
    # Whoever was accepted was answered, or told to come back.
    assert set(load.counts()) <= {200, 503, 504}, load.counts()
    wait_until(lambda: settled(pooled), "all to be back")
    check_answers(pooled)


def test_the_next_agent_adopts_a_pool_worker_with_its_members(pooled: Cluster, tmp_path: Path):
    before = pids(pooled)
    pool = pool_of(pooled)
    os.kill(pooled.agents["node1"].pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pooled.agents["node1"].pid), "the agent to end")
    check_answers(pooled)
    agent = pooled.start_agent("node1", *FLAGS, "--stop-workers-on-exit")
    wait_until(lambda: pids(pooled) == before, "the workers to be adopted")
    assert "pool worker adopted" in agent.said()
    check_answers(pooled)
    register(pooled, tmp_path, 7)
    pooled.admin.wait_for_state("times-7", "ready")
    assert pooled.worker_pids("times-7") == [pool]
    assert agent.stop() == 0
    assert not is_running(pool)
    left = sorted(path.name for path in (pooled.folder / "node1" / "pools").iterdir())
    assert left == [], "its folder goes with its last member"


def test_a_model_that_ends_the_process_twice_gets_one_of_its_own_and_the_others_go_on(pooled: Cluster):
    pool = pool_of(pooled)
    shared = sorted(name for name, pid in pids(pooled).items() if pid == pool)
    culprit, innocent = shared[0], shared[1]
    factor = int(culprit.removeprefix("times-"))
    with Load(pooled.inference, innocent, clients=2) as load:
        for _ in range(2):
            wait_until(lambda: answer(pooled, factor).status == 200, "the model to answer")
            pid = pids(pooled)[culprit]
            assert answer(pooled, factor, -1e9).status in {500, 503, 504}
            wait_until(lambda: not is_running(pid), "the process to end")
        wait_until(lambda: settled(pooled), "all to be back")
    assert set(load.counts()) <= {200, 503, 504}, load.counts()
    of = pids(pooled)
    assert list(of.values()).count(of[culprit]) == 1, of
    assert list(of.values()).count(of[innocent]) == 4, of
    check_answers(pooled)

    def findings() -> list[str]:
        return [finding["text"] for finding in pooled.admin.get("/v1/findings")]

    wait_until(lambda: any(f"model {culprit}:1 has a process of its own" in text for text in findings()), "the finding")
    # The next agent knows it, too.
    agent = pooled.agents["node1"]
    os.kill(agent.pid, signal.SIGKILL)
    for pid in set(of.values()):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, [agent.pid, *of.values()])), "all to end")
    pooled.start_agent("node1", *FLAGS)
    wait_until(lambda: settled(pooled) and not set(pids(pooled).values()) & set(of.values()), "all to be back")
    of = pids(pooled)
    assert list(of.values()).count(of[culprit]) == 1, of


class Slow(torch.nn.Module):
    """Takes a while, so that its measurement does, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(256, 256)
        for _ in range(50):
            y = y @ y
        return x + y[0, 0]


def reused(cluster: Cluster) -> set[int]:
    """The processes that measure one model after the other."""
    arguments = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in processes_of(cluster.folder)}
    return {pid for pid, of in arguments.items() if b"profile" in of and b"--reused" in of}


def test_a_measurement_whose_shared_process_ends_is_made_in_one_of_its_own(new_cluster: Callable[..., Cluster], tmp_path: Path):
    cluster = new_cluster()
    agent = cluster.start_agent("node1", *FLAGS)
    x, y = (models.tensor(name, "FP32", [-1, 4]) for name in "xy")
    slow = models.make(tmp_path, Slow(), models.registration("z-slow", [x], [y]))
    register(cluster, tmp_path, 1)
    cluster.admin.register(slow.registration, slow.file)
    log = cluster.folder / "node1" / "reused" / "cpu0" / "worker.log"
    wait_until(lambda: log.exists() and log.read_text().count("phase=Loading") == 2, "one process to measure both")
    (process,) = reused(cluster)
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: settled(cluster), "both to be measured and served")
    assert f"reused worker ended pid={process}" in agent.said()
    assert agent.said().count("task=measurement of z-slow:1") == 2
