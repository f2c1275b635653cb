"""Models that are in neither memory: those that were used least recently leave the node's, too, and are loaded from their files when they are asked for."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cluster import Cluster, wait_until
from http_admin import request
from many_models import Watch
from pool_worker import served, workers
from test_parking import WIDTH, ask, check, flags, import_profiles, kill_under_load, perceptron, register

COUNT = 12
WEIGHTS_MIB = 8
# With room for a process, what a load takes, and the weights of a few models.
LIMIT_MIB = 440
# For the weights of three models.
HOST_MIB = 26
# A load from a file takes some tenths of a second here, and far longer while others compile.
PATIENT_MS = 60_000


Start = Callable[..., tuple[Cluster, dict[str, torch.nn.Module]]]


@pytest.fixture
def start(new_cluster: Callable[..., Cluster], tmp_path: Path) -> Start:
    """Starts a node with a dozen models, of which few are in the device's memory, three in the node's, and the others in their files."""

    def start(**registered) -> tuple[Cluster, dict[str, torch.nn.Module]]:
        cluster = new_cluster()
        cluster.start_agent("node1", *flags(LIMIT_MIB), "--host-memory", f"{HOST_MIB}MiB")
        names = [f"model-{number}" for number in range(COUNT)]
        import_profiles(cluster, tmp_path, names)
        modules = {name: perceptron(number) for number, name in enumerate(names)}
        for name, module in modules.items():
            register(cluster, tmp_path, name, module, slo_ms=PATIENT_MS, **registered)
        wait_until(lambda: served(cluster, COUNT), "all models to be served")
        return cluster, modules

    return start


def weights(cluster: Cluster, name: str) -> dict:
    return cluster.admin.get(f"/v1/models/{name}")["replicas"][0]["weights"]


def in_place(cluster: Cluster, place: str) -> set[str]:
    return {name for name in (f"model-{number}" for number in range(COUNT)) if weights(cluster, name)["residency"] == place}


def test_all_models_answer_from_files_and_memory_stays_below_both_limits(start: Start):
    cluster, modules = start()
    (pid,) = workers(cluster)
    watch = Watch(pid)
    for seed in range(3):
        check(cluster, modules, seed)
        assert cluster.admin.metric("packhorse_weights_warm_bytes") <= HOST_MIB << 20
    names = [name for _ in range(6) for name in modules]
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda name: ask(cluster, name, 1)[0], names))
    assert set(answers) == {200}, answers
    assert watch.stop() <= LIMIT_MIB
    assert workers(cluster) == {pid}

    there, ready, files = (in_place(cluster, place) for place in ("resident", "warm", "cold"))
    assert there and files, (there, ready, files)
    assert len(there) + len(ready) + len(files) == COUNT
    assert len(ready) * WEIGHTS_MIB <= HOST_MIB
    loaded = [weights(cluster, name) for name in modules]
    log = (cluster.folder / "node1" / "pools" / "cpu0" / "worker.log").read_text()
    assert log.count("the program as it is has answered") == COUNT, "what was verified is not tried once more"
    assert log.count("program loaded again") >= sum(of["cold_loads"] for of in loaded)
    assert sum(of["cold_loads"] for of in loaded) > COUNT
    assert all(of["cold_load_ms"] > of["load_ms"] or of["residency"] == "cold" for of in loaded)
    waited = [of for of in cluster.admin.get("/v1/requests?limit=1000") if of["stages_ms"]["load"] > 0]
    assert waited and all(of["stages_ms"]["load"] <= of["latency_ms"] for of in waited)
    assert cluster.admin.metric("packhorse_weights_cold_bytes") == pytest.approx(len(files) * (WEIGHTS_MIB << 20), rel=0.1)


def test_who_may_not_wait_is_told_when_to_come_back_and_the_model_is_loaded_all_the_same(start: Start):
    cluster, modules = start(max_cold_wait_ms=0)
    wait_until(lambda: in_place(cluster, "cold"), "models to leave memory")
    name = min(in_place(cluster, "cold"))
    assert cluster.admin.get(f"/v1/models/{name}")["max_cold_wait_ms"] == 0
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.5] * WIDTH}]}
    refused = request(cluster.inference, "POST", f"/v2/models/{name}/infer", json.dumps(body).encode())
    assert refused.status == 503, refused
    assert int(refused.headers["retry-after"]) >= 1
    assert "loaded from its file" in refused.json()["error"]
    wait_until(lambda: weights(cluster, name)["residency"] != "cold", "the model to be loaded for whoever comes next")
    check(cluster, {name: modules[name]}, 1)
    assert weights(cluster, name)["cold_loads"] == 1
    assert cluster.admin.metric("packhorse_weights_cold_loads_total") >= 1


def test_a_file_that_is_gone_while_its_model_is_cold_is_fetched_anew(start: Start):
    cluster, modules = start()
    check(cluster, modules, 1)
    name = min(in_place(cluster, "cold"))
    digest = cluster.admin.get(f"/v1/models/{name}")["artifact"].removeprefix("sha256:")
    (file,) = (cluster.folder / "node1").glob(f"**/artifacts/{digest}")
    file.unlink()
    # Whoever asks first is told to come back, or waits long enough.
    status, given, _ = ask(cluster, name, 1)
    assert status in (200, 503, 504), given
    wait_until(lambda: ask(cluster, name, 2)[0] == 200, "the model to be served again")
    assert file.is_file()
    check(cluster, modules, 3)


def test_a_pool_that_is_killed_while_it_loads_from_files_serves_all_again(start: Start):
    cluster, modules = start()
    (pid,) = workers(cluster)
    kill_under_load(cluster, COUNT, pid, clients=3, loads=COUNT, more=COUNT)
    check(cluster, modules, 3)
