"""Compares these programs with those of another version, in turn: requests, processor time and starts; writes docs/benchmarks/versions.md.

    cargo xtask bench versions --other FOLDER --name "0.1.0"
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import cluster as cluster_module
import models
from cluster import Cluster, cpu_seconds, processes_of, wait_until

REPORT = Path(__file__).parent.parent / "docs/benchmarks/versions.md"
PAYLOADS = {"64 B": 64, "602,112 B": 602_112}
CONCURRENCIES = [1, 8, 32]
HERE = cluster_module.PROGRAMS


class Version:
    """A cluster of one version, with one CPU and one model."""

    def __init__(self, programs: Path, folder: Path):
        folder.mkdir()
        self.programs = programs.absolute()
        self.folder = folder
        self.starts: dict[str, list[float]] = {"gateway": [], "model": [], "worker": []}
        self.cluster = None
        self.start()

    def start(self) -> None:
        """Starts a cluster with a new state folder, in place of the one that runs, and times it."""
        if self.cluster:
            self.cluster.close()
        cluster_module.PROGRAMS = self.programs
        folder = self.folder / f"{len(self.starts['gateway'])}"
        folder.mkdir()
        since = time.perf_counter()
        self.cluster = Cluster(folder, "--wake-latency-us", "0")
        self.starts["gateway"].append(time.perf_counter() - since)
        self.cluster.start_agent("node1", "--devices", "cpu:1", "--stop-workers-on-exit")
        (node,) = self.cluster.admin.get("/v1/nodes")
        # Imported, so that it is not measured.
        csv = models.profiles(folder, {"sum": 1.0}, kind=node["devices"][0]["kind"])
        assert self.cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes()).status in (200, 204)
        x, y = models.tensor("x", "FP32", [-1, -1]), models.tensor("y", "FP32", [-1, 1])
        registration = models.registration("sum", [x], [y], slo_ms=10_000)
        model = models.make(folder, models.SumOfRow(), registration)
        since = time.perf_counter()
        self.cluster.admin.register(model.registration, model.file)
        wait_until(self.serves, "the model to be served")
        self.starts["model"].append(time.perf_counter() - since)
        (pid,) = self.cluster.worker_pids("sum")
        since = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.serves() and self.cluster.worker_pids("sum") != [pid], "the worker to be back")
        self.starts["worker"].append(time.perf_counter() - since)

    def serves(self) -> bool:
        return self.cluster.admin.get("/v1/models/sum")["state"] == "ready"

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, [self.cluster.gateway.pid, *self.cluster.worker_pids("sum")]))

    def load(self, payload: int, concurrency: int, seconds: float) -> dict[str, float]:
        before = self.cpu_seconds()
        command = [str(HERE / "packhorse"), "bench", "sum", "--json", "--slo", "10000", "--warm-up", "0", "--duration", str(seconds)]
        command += ["--url", f"http://{self.cluster.inference}", "--concurrency", str(concurrency), "--payload-bytes", str(payload)]
        report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        requests = report["requests"]
        assert requests["all"] == requests["answered"], report["errors"]
        cpu = (self.cpu_seconds() - before) * 1e6 / requests["all"]
        return {"rps": report["throughput_rps"], "p50": report["latency_ms"]["p50"], "p99": report["latency_ms"]["p99"], "cpu": cpu}


def row(cells: list[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def compare(others: Path, seconds: float, rounds: int) -> tuple[list[str], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        versions = [Version(others, Path(folder) / "other"), Version(HERE, Path(folder) / "this")]
        try:
            loads: dict[tuple[str, int], list[list[dict[str, float]]]] = {}
            for turn in range(rounds):
                for version in versions if turn else []:
                    version.start()
                for name, payload in PAYLOADS.items():
                    for concurrency in CONCURRENCIES:
                        pair = [version.load(payload, concurrency, seconds) for version in versions]
                        loads.setdefault((name, concurrency), []).append(pair)
                        print(name, concurrency, *pair, flush=True)
            starts = [version.starts for version in versions]
        finally:
            for version in versions:
                version.cluster.close()
                assert not processes_of(version.folder)

    def medians(found: list[list[dict[str, float]]], field: str) -> tuple[float, float, float]:
        ratios = [this[field] / other[field] for other, this in found]
        other, this = (statistics.median(pair[index][field] for pair in found) for index in range(2))
        return other, this, statistics.median(ratios)

    served = []
    for (name, concurrency), found in loads.items():
        cells: list[object] = [name, concurrency]
        for field, digits in [("rps", 0), ("p50", 3), ("p99", 3), ("cpu", 0)]:
            other, this, ratio = medians(found, field)
            cells += [f"{other:,.{digits}f}", f"{this:,.{digits}f}", f"{ratio:.2f}"]
        served.append(row(cells))
    started = []
    for name, what in {"gateway": "a gateway until it listens", "model": "a registration until it is served", "worker": "a killed worker until it serves again"}.items():
        other, this = (statistics.median(times[name]) for times in starts)
        started.append(row([what, f"{other:.2f}", f"{this:.2f}", f"{this / other:.2f}"]))
    return served, started


def write(served: list[str], started: list[str], given: argparse.Namespace) -> None:
    REPORT.write_text(f"""# Two versions

Made by `cargo xtask bench versions --other FOLDER --name "{given.name}"` on {os.cpu_count()} cores, {platform.system()} {platform.release()}; the load average at the end was {os.getloadavg()[0]:.1f}.
{given.build}

The programs of {given.name} and those of this page's commit, each with one CPU and one model that sums its input.
They take turns in one run; medians of {given.rounds} rounds of {given.seconds:g} s, and of the ratios of each turn.
The first number is that of {given.name}, the second that of now.
The processor time is that of gateway and worker, in µs for a request.

| input | clients | requests/s | now | ratio | p50, ms | now | ratio | p99, ms | now | ratio | CPU, µs | now | ratio |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{chr(10).join(served)}

Seconds of starts, with an imported profile:

| start of | {given.name} | now | ratio |
|---|--:|--:|--:|
{chr(10).join(started)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, required=True, metavar="FOLDER", help="the programs of the other version")
    parser.add_argument("--name", default="the other version", help="name of the other version")
    parser.add_argument("--build", default="Both are release builds.", help="sentence of the page about the builds")
    parser.add_argument("--seconds", type=float, default=3, help="time of each load")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each case, of which the median counts")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    served, started = compare(given.other, given.seconds, given.rounds)
    print(*served, *started, sep="\n")
    if given.write:
        write(served, started, given)


if __name__ == "__main__":
    main()
