"""Measures what the confinement of workers costs: their start, and the requests of a tiny model; writes docs/benchmarks/confinement.md.

    cargo xtask bench confinement
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import models
import torch
from cluster import BUILD, PROGRAMS, Cluster, wait_until

REPORT = Path(__file__).parent.parent / "docs/benchmarks/confinement.md"
# A user without an entry in the system.
USER = "61234"
CONCURRENCY = 1
# The agent's flags.
CASES = {
    "off": ["--worker-user", "root", "--confine-workers", "off"],
    "Landlock": ["--worker-user", "root", "--confine-workers", "cpu"],
    "own user": ["--worker-user", USER, "--confine-workers", "off"],
    "own user and Landlock": ["--worker-user", USER, "--confine-workers", "cpu"],
}


class AddOne(torch.nn.Module):
    """Next to nothing to compute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@dataclass
class Run:
    """A measurement of one case."""

    start_ms: float
    p50_ms: float
    p99_ms: float
    rps: float


class Case:
    """A gateway and an agent with one worker; only one case runs at a time."""

    def __init__(self, folder: Path, flags: list[str]):
        folder.mkdir(mode=0o711)
        self.cluster = Cluster(folder, "--worker-user", USER, "--profile-time-limit-ms", "1000")
        self.cluster.start_agent("node1", "--devices", "cpu:1", "--stop-workers-on-exit", *flags)
        given = models.registration("tiny", [models.tensor("x", "FP32", [-1, 16])], [models.tensor("y", "FP32", [-1, 16])], rate_rps=100)
        tiny = models.make(folder, AddOne(), given)
        self.cluster.admin.register(tiny.registration, tiny.file)
        self.cluster.admin.wait_for_state("tiny", "ready")

    def starts(self, count: int) -> list[float]:
        """The milliseconds of several starts of the worker, from the process's own begin until it says that it is ready."""
        found = []
        for _ in range(count):
            (pid,) = self.cluster.worker_pids("tiny")
            os.kill(pid, 9)
            replicas = self.cluster.folder / "node1/replicas"

            def ready(before: int = pid) -> float | None:
                for file in replicas.glob("*/status.json"):
                    try:
                        status = json.loads(file.read_text())
                    except (FileNotFoundError, json.JSONDecodeError):
                        continue
                    process = status["process"]
                    if process["pid"] != before and status["phase"]["phase"] == "ready":
                        began = process["start_ticks"] / os.sysconf("SC_CLK_TCK")
                        return file.stat().st_mtime - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) - began
                return None

            found.append(wait_until(ready, "the worker to be ready again", limit=120) * 1e3)
            wait_until(lambda before=pid: before not in self.cluster.worker_pids("tiny") != [], "the gateway to know it")
            self.cluster.admin.wait_for_state("tiny", "ready")
        return found

    def load(self, seconds: float) -> tuple[float, float, float]:
        bench = [str(PROGRAMS / "packhorse"), "bench", "tiny", "--url", f"http://{self.cluster.inference}", "--json", "--slo", "1000"]
        bench += ["--warm-up", "1", "--concurrency", str(CONCURRENCY), "--duration", str(seconds)]
        report = json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout)
        latency = report["latency_ms"]
        return latency["p50"], latency["p99"], report["requests"]["answered"] / seconds


def measure(folder: Path, flags: list[str], starts: int, seconds: float) -> Run:
    case = Case(folder, flags)
    try:
        start = statistics.median(case.starts(starts))
        return Run(start, *case.load(seconds))
    finally:
        case.cluster.close()


def table(runs: dict[str, list[Run]]) -> str:
    def cell(several: list[Run], name: str, digits: int) -> str:
        values = [getattr(run, name) for run in several]
        return f"{statistics.median(values):,.{digits}f} | {min(values):,.{digits}f}–{max(values):,.{digits}f}"

    digits = {"start_ms": 0, "p50_ms": 3, "p99_ms": 3, "rps": 0}
    rows = [
        f"| {name} | " + " | ".join(cell(several, field.name, digits[field.name]) for field in fields(Run)) + " |"
        for name, several in runs.items()
    ]
    head = "| confinement | start, ms | of rounds | p50, ms | of rounds | p99, ms | of rounds | requests/s | of rounds |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="time of each load")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, in each of which all cases are measured")
    parser.add_argument("--starts", type=int, default=3, help="number of starts in each round, of which the median counts")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("only root starts workers of another user")
    found: dict[str, list[Run]] = {case: [] for case in CASES}
    folder = Path(tempfile.mkdtemp(prefix="packhorse-confinement"))
    try:
        folder.chmod(0o711)
        for number in range(given.rounds):
            # Every case is first, second, … in turn.
            order = list(CASES)[number % len(CASES) :] + list(CASES)[: number % len(CASES)]
            for case in order:
                run = measure(folder / f"{number}-{case}".replace(" ", "-"), CASES[case], given.starts, given.seconds)
                found[case].append(run)
                print(case, run, flush=True)
    finally:
        shutil.rmtree(folder)
    if given.write:
        REPORT.write_text(f"""# The cost of confinement

Made by `tests/confinement_cost.py --seconds {given.seconds:g} --rounds {given.rounds}`, which `cargo xtask bench confinement` runs with the release build, on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

A worker on a CPU with a TorchScript model of next to nothing (x + 1 on 16 numbers), [confined](../security.md#what-a-hostile-model-can-do) in four ways: not at all (`--confine-workers off`, the agent's user), by Landlock (`cpu`), as a user of its own (`--worker-user`), and by both.
The start is the time from the begin of the process, which the kernel knows to 10 ms, until it writes that it is ready: {given.starts} starts a round, of which the median counts.
The requests are those of one client that asks again at once over a kept connection, through the gateway, for {given.seconds:g} s.
All cases are measured in each round, in turning order; medians of {given.rounds} rounds, and the lowest and the highest.

{table(found)}
""")


if __name__ == "__main__":
    main()
