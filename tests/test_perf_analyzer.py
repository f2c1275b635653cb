"""NVIDIA's `perf_analyzer`, unmodified: closed loop, open loop, and tensors in shared memory."""

from pathlib import Path

import perf_analyzer
import pytest
from conftest import Served
from http_admin import request

pytestmark = perf_analyzer.needed


def answered(served: Served) -> int:
    stats = request(served.address, "GET", "/v2/models/double/stats").json()
    return stats["model_stats"][0]["inference_stats"]["success"]["count"]


@pytest.mark.parametrize(
    "load",
    [
        ["--concurrency-range", "4"],
        ["--concurrency-range", "2", "--input-tensor-format", "json", "--output-tensor-format", "json", "-z"],
        ["--request-rate-range", "40", "--request-distribution", "poisson"],
        ["--concurrency-range", "4", "--shared-memory", "system"],
        ["--request-rate-range", "40", "--request-distribution", "constant", "--shared-memory", "system"],
    ],
    ids=["closed-loop", "closed-loop-json", "open-loop", "closed-loop-shared-memory", "open-loop-shared-memory"],
)
def test_perf_analyzer_measures(served: Served, load: list[str], tmp_path: Path):
    before = answered(served)
    perf_analyzer.measure(served.address, "double", ["--shape", "x:16", *load], tmp_path / "report.csv")
    assert answered(served) - before >= 40
    # Nothing of it is left.
    assert request(served.address, "GET", "/v2/systemsharedmemory/status").json() == []


@pytest.mark.parametrize(
    "load",
    [
        ["--concurrency-range", "4"],
        ["--concurrency-range", "4", "--streaming"],
        ["--request-rate-range", "40", "--request-distribution", "poisson"],
        ["--concurrency-range", "4", "--shared-memory", "system"],
    ],
    ids=["closed-loop", "stream", "open-loop", "closed-loop-shared-memory"],
)
def test_perf_analyzer_measures_over_grpc(served: Served, load: list[str], tmp_path: Path):
    before = answered(served)
    perf_analyzer.measure(served.cluster.grpc, "double", ["--shape", "x:16", *load], tmp_path / "report.csv", "grpc")
    assert answered(served) - before >= 40
    assert request(served.address, "GET", "/v2/systemsharedmemory/status").json() == []
