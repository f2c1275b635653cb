"""Runs NVIDIA's `perf_analyzer`, unmodified."""

import csv
import os
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "target/tools/perf-analyzer"
PROGRAM = TOOLS / "perf_analyzer"

needed = pytest.mark.skipif(not PROGRAM.exists(), reason="there is no perf_analyzer: `cargo xtask test` unpacks it from the package tritonclient")


def measure(address: str, model: str, load: list[str], report: Path, protocol: str = "http") -> dict[str, str]:
    """Measures a model with a load of at least 40 requests in batches of one, and returns the row of the report.

    Any stability will do, and one window of requests: it is not the speed that is tested.
    """
    flags = ["-m", model, "-i", protocol, "-u", address, "-b", "1", *load]
    flags += ["--measurement-mode", "count_windows", "--measurement-request-count", "40", "-s", "999", "-r", "3", "-f", str(report)]
    done = subprocess.run(
        [str(PROGRAM), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"LD_LIBRARY_PATH": str(TOOLS / "lib")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.open())
    assert float(row["Inferences/Second"]) > 0, row
    return row
