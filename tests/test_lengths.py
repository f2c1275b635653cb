"""Models of sequences are planned for the lengths that their requests have: said in the registration, or learned from the requests."""

import csv
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest
import sequences
import tritonclient.http as tritonhttp
from cluster import Cluster, wait_until

MakeCluster = Callable[..., Cluster]

# The lengths of the requests, and the shape of a profile for them.
LENGTHS = {"distil": (128, "-1x128 -1x128"), "encoder": (3000, "-1x80x3000")}
# A contradiction between a profile and what is observed begins here, see docs/models.md.
CONTRADICTION = 0.25


def make(folder: Path, kind: str, typical: int | None) -> models.Model:
    return {"distil": sequences.distil, "encoder": sequences.encoder}[kind](folder, kind, typical)


def inputs(kind: str) -> list[tritonhttp.InferInput]:
    """One row of the length that requests have."""
    length = LENGTHS[kind][0]
    tokens = np.full((1, length), 5, np.int64)
    arrays = {
        "distil": {"input_ids": tokens, "attention_mask": np.ones_like(tokens)},
        "encoder": {"mel": np.zeros((1, 80, length), np.float32)},
    }[kind]
    made = []
    for name, array in arrays.items():
        datatype = {"int64": "INT64", "float32": "FP32"}[str(array.dtype)]
        made.append(tritonhttp.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


class Profiled:
    """A cluster with one thread of the CPU and one model."""

    def __init__(self, cluster: Cluster, folder: Path, kind: str, typical: int | None):
        self.cluster, self.kind = cluster, kind
        model = make(folder, kind, typical)
        cluster.start_agent("n", "--devices", "cpu:1")
        cluster.admin.register(model.registration, model.file)
        wait_until(lambda: cluster.admin.get(f"/v1/models/{kind}")["state"] == "ready", "the model to serve", 120)
        self.client = tritonhttp.InferenceServerClient(cluster.inference)
        self.inputs = inputs(kind)

    def row(self, model: str | None = None) -> dict:
        """The row of a model's profile for one row, by default of this one's."""
        profile = self.cluster.admin.call("GET", f"/v1/profiles?model={model or self.kind}").body.decode()
        rows = csv.DictReader(io.StringIO(profile))
        return next(row for row in rows if row["batch_size"] == "1")

    def infer(self) -> None:
        self.client.infer(self.kind, self.inputs)

    def computed_ms(self) -> float:
        """The time that the worker measures of a request alone: the median of some."""
        times = []
        for _ in range(30):
            before = self.statistics()
            self.infer()
            times.append((self.statistics() - before) / 1e6)
        return statistics.median(times)

    def statistics(self) -> int:
        """The nanoseconds of all computations so far."""
        return self.client.get_inference_statistics(self.kind)["model_stats"][0]["inference_stats"]["compute_infer"]["ns"]


@pytest.fixture
def profiled(new_cluster: MakeCluster, tmp_path: Path) -> Callable[..., Profiled]:
    return lambda kind, typical=None: Profiled(new_cluster(), tmp_path, kind, typical)


def report(kind: str, how: str, planned: float, measured: float) -> None:
    print(f"{kind} {how}: planned {planned:.2f} ms, measured {measured:.2f} ms, {100 * (planned / measured - 1):+.1f} %")


@pytest.mark.parametrize("kind", LENGTHS)
def test_a_typical_shape_is_what_is_measured_and_stays(profiled, kind: str):
    length, shape = LENGTHS[kind]
    model = profiled(kind, length)
    row = model.row()
    assert row["input_shapes"] == shape
    report(kind, "with typical_shape", float(row["latency_ms"]), model.computed_ms())


@pytest.mark.parametrize("kind", LENGTHS)
def test_without_one_the_lengths_of_requests_are_learned_and_survive_a_restart(profiled, kind: str, tmp_path: Path):
    _, shape = LENGTHS[kind]
    model = profiled(kind)
    first = model.row()
    assert first["input_shapes"] != shape

    def is_noticed() -> bool:
        model.infer()
        events = model.cluster.admin.get("/v1/events?follow=false&limit=1000")
        return any(event["state"] == "input_shapes" and shape in event["text"] for event in events)

    begun = time.monotonic()
    wait_until(is_noticed, "the lengths of requests to be learned", 180)
    # Requests beside it would make the measurement slower, and the machine of a test has no core to spare.
    wait_until(lambda: model.row()["input_shapes"] == shape, "the model to be measured with them", 60)
    took = time.monotonic() - begun
    row = model.row()
    planned = float(row["latency_ms"])
    # At 16 it is so much faster that the two cannot be confused, however busy the machine is.
    assert planned > (1 + CONTRADICTION) * float(first["latency_ms"])
    report(kind, f"learned within {took:.0f} s", planned, model.computed_ms())

    # Another name and another start know it.
    again = {**make(tmp_path, kind, LENGTHS[kind][0]).registration, "name": f"{kind}-again"}
    model.cluster.admin.register(again, tmp_path / f"{kind}-1.pt")
    assert model.row(f"{kind}-again")["latency_ms"] == row["latency_ms"]
    model.cluster.gateway.kill()
    model.cluster.start_gateway()
    wait_until(lambda: model.cluster.admin.get(f"/v1/models/{kind}")["state"] == "ready", "the model to serve", 120)
    assert model.row() == row
