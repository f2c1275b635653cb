"""Models whose programs begin with the same operators on the same weights: one worker serves them."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import models
import numpy as np
import pytest
import torch
import triton_clients
from cluster import Cluster, wait_until

HEADS = 4


class Headed:
    """A cluster with one CPU that serves models with one backbone."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.admin = cluster.admin
        self.models = models.headed(cluster.folder, HEADS + 1)
        cluster.start_agent("node1", "--devices", "cpu")
        self.register(self.models[:HEADS])

    def register(self, more: list[models.Model]) -> None:
        for model in more:
            self.admin.register(model.registration, model.file)
        for model in more:
            self.admin.wait_for_state(model.name, "ready")

    def wait_for_one_worker(self, served: list[models.Model]) -> int:
        """Waits until the plan has one worker for these models and no others, and all of them serve; its process id."""
        names = {model.name for model in served}

        def found() -> int | None:
            replicas = self.admin.get("/v1/plan")["replicas"]
            others = [{model.split(":")[0] for model in replica.get("also", [])} for replica in replicas]
            is_one = all(also == names - {replica["model"]} for replica, also in zip(replicas, others))
            if {replica["model"] for replica in replicas} != names or not is_one:
                return None
            pids = {pid for name in names for pid in self.cluster.worker_pids(name)}
            states = {self.admin.get(f"/v1/models/{name}")["state"] for name in names}
            return pids.pop() if len(pids) == 1 and states == {"ready"} else None

        return wait_until(found, "one worker for all models", 60)


@pytest.fixture
def headed(new_cluster: Callable[..., Cluster]) -> Headed:
    return Headed(new_cluster("--shared-backbones", "on"))


def image(seed: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3, 32, 32)).astype(np.float32)


def check(headed: Headed, client, model: models.Model, x: np.ndarray) -> None:
    answer = client.infer(model.name, triton_clients.tensors({"image": x})).as_numpy("logits")
    expected = model.answer(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_models_that_share_a_backbone_are_found_and_served_by_one_worker(headed: Headed):
    served = headed.models[:HEADS]
    headed.wait_for_one_worker(served)
    client = triton_clients.connect("sync", headed.cluster.inference)
    for seed, model in enumerate(served):
        for rows in (1, 8):
            check(headed, client, model, image(seed, rows))
    client.close()

    def ask(number: int) -> None:
        client = triton_clients.connect("sync", headed.cluster.inference)
        for step in range(25):
            check(headed, client, served[(number + step) % HEADS], image(100 * number + step))
        client.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def test_a_model_joins_and_leaves_while_the_others_answer(headed: Headed):
    served = headed.models[:HEADS]
    headed.wait_for_one_worker(served)
    client = triton_clients.connect("sync", headed.cluster.inference)
    stop = False

    def keep_asking() -> int:
        asked = 0
        other = triton_clients.connect("sync", headed.cluster.inference)
        while not stop:
            check(headed, other, served[asked % HEADS], image(asked))
            asked += 1
        other.close()
        return asked

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(keep_asking)
        try:
            headed.register(headed.models[HEADS:])
            headed.wait_for_one_worker(headed.models)
            check(headed, client, headed.models[HEADS], image(3))
            answer = headed.admin.call("DELETE", f"/v1/models/{headed.models[HEADS].name}")
            assert answer.status in (200, 204), answer
            headed.wait_for_one_worker(served)
        finally:
            stop = True
        assert asked.result() > 0
    client.close()


def test_after_the_death_of_the_worker_all_its_models_come_back(headed: Headed):
    served = headed.models[:HEADS]
    pid = headed.wait_for_one_worker(served)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: headed.cluster.worker_pids(served[0].name) not in ([], [pid]), "another worker", 60)
    headed.wait_for_one_worker(served)
    client = triton_clients.connect("sync", headed.cluster.inference)
    for model in served:
        check(headed, client, model, image(1))
    client.close()
