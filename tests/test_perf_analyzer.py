"""NVIDIA's `perf_analyzer`, unmodified: closed loop, open loop, and tensors in shared memory."""

import csv
import os
import subprocess
from pathlib import Path

import pytest
from conftest import Served
from http_admin import request

TOOLS = Path(__file__).parent.parent / "target/tools/perf-analyzer"


@pytest.fixture(scope="module")
def program() -> Path:
    program = TOOLS / "perf_analyzer"
    if not program.exists():
        pytest.skip("there is no perf_analyzer: `cargo xtask test` unpacks it from the package tritonclient")
    return program


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
def test_perf_analyzer_measures(program: Path, served: Served, load: list[str], tmp_path: Path):
    before = answered(served)
    report = tmp_path / "report.csv"
    # Any stability will do, and one window of requests: it is not the speed that is tested.
    flags = ["-m", "double", "-i", "http", "-u", served.address, "--shape", "x:16", "-b", "1", *load]
    flags += ["--measurement-mode", "count_windows", "--measurement-request-count", "40", "-s", "999", "-r", "3", "-f", str(report)]
    done = subprocess.run(
        [str(program), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"LD_LIBRARY_PATH": str(TOOLS / "lib")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.open())
    assert float(row["Inferences/Second"]) > 0, row
    assert answered(served) - before >= 40
    # Nothing of it is left.
    assert request(served.address, "GET", "/v2/systemsharedmemory/status").json() == []
