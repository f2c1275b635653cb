"""More models than memory: weights come when they are asked for, and the process stays below its limit."""

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
import pytest
import torch
from cluster import Cluster, wait_until
from http_admin import request
from many_models import Watch, resident_kib
from pool_worker import served, workers

WIDTH = 64
COUNT = 10
WEIGHTS_MIB = 8
# With room for a process, what a load takes, and the weights of a few models.
LIMIT_MIB = 440


def perceptron(number: int) -> torch.nn.Module:
    """8 MiB of weights of its own."""
    torch.manual_seed(number)
    layers = [torch.nn.Linear(WIDTH, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1900), torch.nn.ReLU(), torch.nn.Linear(1900, 4)]
    return torch.nn.Sequential(*layers).eval()


def flags(limit_mib: int = LIMIT_MIB) -> list[str]:
    return ["--devices", "cpu", "--own-workers", "0", "--device-memory", f"cpu0={limit_mib}MiB"]


@pytest.fixture
def crowded(new_cluster: Callable[..., Cluster], tmp_path: Path) -> tuple[Cluster, dict[str, torch.nn.Module]]:
    """A node with ten models in a memory that has room for about half of them, with the modules that they are."""
    cluster = new_cluster()
    cluster.start_agent("node1", *flags())
    names = [f"model-{number}" for number in range(COUNT)]
    import_profiles(cluster, tmp_path, names)
    modules = {name: perceptron(number) for number, name in enumerate(names)}
    for name, module in modules.items():
        register(cluster, tmp_path, name, module)
    wait_until(lambda: served(cluster, COUNT), "all models to be served")
    return cluster, modules


def import_profiles(cluster: Cluster, folder: Path, names: list[str], memory_mib: int = 200) -> None:
    (node,) = cluster.admin.get("/v1/nodes")
    csv = models.profiles(folder, dict.fromkeys(names, 2.0), kind=node["devices"][0]["kind"])
    csv = csv.read_text().replace(",500,30,30,30", f",{memory_mib},,,")
    answer = cluster.admin.call("PUT", "/v1/profiles", csv.encode())
    assert answer.status == 200, answer


def register(cluster: Cluster, folder: Path, name: str, module: torch.nn.Module, **more) -> None:
    x, y = models.tensor("x", "FP32", [-1, WIDTH]), models.tensor("y", "FP32", [-1, 4])
    model = models.make(folder, module, models.registration(name, [x], [y], **more))
    cluster.admin.register(model.registration, model.file)


def ask(cluster: Cluster, name: str, seed: int) -> tuple[int, list[float] | str, torch.Tensor]:
    """The answer to a row of random numbers, with the row."""
    row = torch.rand(1, WIDTH, generator=torch.Generator().manual_seed(seed))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": row.flatten().tolist()}]}
    answer = request(cluster.inference, "POST", f"/v2/models/{name}/infer", json.dumps(body).encode())
    return answer.status, answer.json()["outputs"][0]["data"] if answer.status == 200 else str(answer), row


def check(cluster: Cluster, modules: dict[str, torch.nn.Module], seed: int) -> None:
    """Every model answers for itself, also where its weights were not there."""
    for name, module in modules.items():
        status, given, row = ask(cluster, name, seed)
        assert status == 200, given
        with torch.no_grad():
            expected = module(row).flatten()
        torch.testing.assert_close(torch.tensor(given), expected, rtol=1e-3, atol=1e-4)


def residents(cluster: Cluster) -> set[str]:
    shown = (cluster.admin.get(f"/v1/models/model-{number}") for number in range(COUNT))
    return {view["name"] for view in shown if view["replicas"][0]["weights"]["residency"] == "resident"}


def kill_under_load(cluster: Cluster, count: int, pid: int, clients: int, loads: int, more: int) -> None:
    """Kills the pool's process after so many loads while clients ask for all models in turn, and has them get so many answers of the next one."""
    ends, answers = threading.Event(), []

    def keep_asking() -> None:
        seed = 0
        while not ends.is_set():
            seed += 1
            answers.append(ask(cluster, f"model-{seed % count}", seed)[0])

    asking = [threading.Thread(target=keep_asking) for _ in range(clients)]
    for client in asking:
        client.start()
    wait_until(lambda: cluster.admin.metric("packhorse_weights_loads_total") > loads, "weights to come and go")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: served(cluster, count) and pid not in workers(cluster), "another process")
    answered = len(answers)
    wait_until(lambda: len(answers) > answered + more, "answers of the new process")
    ends.set()
    for client in asking:
        client.join()
    # Whoever was accepted was answered, or told to come back.
    assert set(answers) <= {200, 503, 504}, set(answers)


def test_all_models_answer_from_a_memory_that_does_not_hold_them(crowded):
    cluster, modules = crowded
    (pid,) = workers(cluster)
    watch = Watch(pid)
    for seed in range(5):
        check(cluster, modules, seed)
    with ThreadPoolExecutor(8) as clients:
        names = [name for _ in range(20) for name in modules]
        answers = list(clients.map(lambda name: ask(cluster, name, 1)[0], names))
    assert set(answers) == {200}, answers
    assert watch.stop() <= LIMIT_MIB

    there = residents(cluster)
    assert 0 < len(there) < COUNT, there
    view = cluster.admin.get("/v1/models/model-0")["replicas"][0]
    assert view["worker"] == "pool"
    assert view["weights"]["bytes"] == pytest.approx(WEIGHTS_MIB << 20, rel=0.1)
    assert view["weights"]["pool_bytes"] < LIMIT_MIB << 20
    loads = cluster.admin.metric("packhorse_weights_loads_total")
    assert loads > COUNT
    waited = [of for of in cluster.admin.get("/v1/requests?limit=1000") if of["stages_ms"]["load"] > 0]
    assert len(waited) >= COUNT, "those whose weights were not there say so"
    assert all(of["stages_ms"]["load"] <= of["latency_ms"] for of in waited)
    assert cluster.admin.metric("packhorse_weights_evictions_total") >= loads - COUNT
    on_device, ready = (cluster.admin.metric(f"packhorse_weights_{place}_bytes") for place in ("resident", "warm"))
    assert on_device <= view["weights"]["pool_bytes"]
    assert on_device + ready == pytest.approx(COUNT * (WEIGHTS_MIB << 20), rel=0.1)


def test_a_restart_of_the_gateway_finds_the_weights_where_they_are(crowded):
    cluster, modules = crowded
    check(cluster, modules, 1)
    (pid,), there = workers(cluster), residents(cluster)
    cluster.gateway.kill()
    cluster.start_gateway()
    wait_until(lambda: served(cluster, COUNT), "all models to be served again")
    assert workers(cluster) == {pid}
    assert residents(cluster) == there, "nothing is loaded again"
    assert cluster.admin.metric("packhorse_weights_loads_total") == 0
    check(cluster, modules, 2)


def test_a_pool_that_is_killed_while_weights_come_and_go_serves_all_again(crowded):
    cluster, modules = crowded
    (pid,) = workers(cluster)
    kill_under_load(cluster, COUNT, pid, clients=4, loads=20, more=50)
    check(cluster, modules, 3)
    (pid,) = workers(cluster)
    assert resident_kib(pid) / 1024 <= LIMIT_MIB


def test_a_model_larger_than_the_memory_is_told_so_and_the_others_are_served(crowded, tmp_path: Path):
    cluster, modules = crowded
    import_profiles(cluster, tmp_path, [*modules, "giant"])
    torch.manual_seed(99)
    giant = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4096), torch.nn.Linear(4096, 12_000), torch.nn.Linear(12_000, 4)).eval()
    register(cluster, tmp_path, "giant", giant)

    def shortfall() -> str | None:
        return cluster.admin.get("/v1/models/giant")["reason"]

    wait_until(shortfall, "the reason why it is not served")
    assert "memory" in shortfall(), shortfall()
    check(cluster, modules, 4)


def test_a_process_that_leaves_no_room_for_weights_is_a_finding(new_cluster: Callable[..., Cluster], tmp_path: Path):
    cluster = new_cluster()
    # The profile knows nothing of what the process takes.
    cluster.start_agent("node1", *flags(340))
    import_profiles(cluster, tmp_path, ["model-0"], memory_mib=20)
    register(cluster, tmp_path, "model-0", perceptron(0), slo_ms=500)
    wait_until(lambda: served(cluster, 1), "the model to be served")
    status, given, _ = ask(cluster, "model-0", 1)
    assert status == 504, given

    def found() -> list[dict]:
        return [finding for finding in cluster.admin.get("/v1/findings") if "no room for the weights" in finding["text"]]

    wait_until(found, "the finding")
    (finding,) = found()
    assert finding["severity"] == "critical"
    assert "node1/cpu0 has no room for the weights of model model-0:1" in finding["text"]
    assert "--device-memory" in finding["cure"]["text"]
