"""Measures requests over gRPC beside the same over HTTP; writes docs/benchmarks/grpc.md.

    cargo xtask bench grpc
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import models
import perf_analyzer
from cluster import BUILD, Cluster, cpu_seconds
from conftest import simulated_devices
from http_admin import request

REPORT = Path(__file__).parent.parent / "docs/benchmarks/grpc.md"
# The numbers of each input: an image of 224 by 224 pixels, and 64 bytes.
INPUTS = {"image": 3 * 224 * 224, "small": 16}
CLIENTS = [1, 8, 32]
PROTOCOLS = {"HTTP": ["-i", "http"], "gRPC": ["-i", "grpc"], "gRPC, one stream": ["-i", "grpc", "--streaming"]}
# A batch takes so few milliseconds that the simulated device is not what limits the requests.
BATCH_MS = 0.05


@dataclass
class Run:
    """A measurement under load."""

    rps: float
    p50: float
    p99: float
    # The processor time of the gateway for a request.
    gateway_ms: float


def answered(cluster: Cluster, name: str) -> int:
    """The requests that a model has answered."""
    (statistics_of,) = request(cluster.inference, "GET", f"/v2/models/{name}/stats").json()["model_stats"]
    return statistics_of["inference_stats"]["success"]["count"]


def load(cluster: Cluster, name: str, protocol: list[str], clients: int, seconds: float, report: Path) -> Run:
    """A closed loop of unmodified clients. Three windows are measured, whose mean is reported."""
    before, used = answered(cluster, name), cpu_seconds(cluster.gateway.pid)
    address = cluster.grpc if "grpc" in protocol else cluster.inference
    flags = ["-m", name, *protocol, "-u", address, "-b", "1", "--concurrency-range", str(clients), "--input-data", "zero"]
    # Asynchronous, as streams are: the clients share threads, so that 32 of them are not 32 threads on a few cores.
    flags += ["--async", "-p", str(int(seconds * 1e3 / 3)), "-s", "999", "-r", "3", "-f", str(report)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(perf_analyzer.TOOLS / "lib")}
    done = subprocess.run([perf_analyzer.PROGRAM, *flags], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.open())
    cpu, count = cpu_seconds(cluster.gateway.pid) - used, answered(cluster, name) - before
    return Run(float(row["Inferences/Second"]), *(float(row[f"{percentile} latency"]) / 1e3 for percentile in ("p50", "p99")), cpu / count * 1e3)


def table(runs: dict[tuple[int, str], list[Run]]) -> str:
    def median(clients: int, protocol: str) -> Run:
        return Run(*(statistics.median(getattr(run, field.name) for run in runs[clients, protocol]) for field in fields(Run)))

    rows = []
    for clients in CLIENTS:
        http = median(clients, "HTTP")
        for protocol in PROTOCOLS:
            run = median(clients, protocol)
            rows.append(
                f"| {clients} | {protocol} | {run.rps:,.0f} | {run.rps / http.rps:.2f} | {run.p50:.2f} | {run.p99:.2f} "
                f"| {run.gateway_ms:.3f} | {run.gateway_ms / http.gateway_ms:.2f} |"
            )
    head = "| clients | | requests/s | ratio | p50, ms | p99, ms | gateway, ms | ratio |\n|--:|---|--:|--:|--:|--:|--:|--:|"
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="time of each load")
    parser.add_argument("--rounds", type=int, default=3, help="number of loads of each case, of which the median counts")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    found: dict[str, dict[tuple[int, str], list[Run]]] = {
        name: {(clients, protocol): [] for clients in CLIENTS for protocol in PROTOCOLS} for name in INPUTS
    }
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start_agent("node1", *simulated_devices(cluster, dict.fromkeys(INPUTS, BATCH_MS), 1))
            for name, size in INPUTS.items():
                inputs, outputs = [models.tensor("x", "FP32", [-1, size])], [models.tensor("y", "FP32", [-1, 4])]
                cluster.admin.register(models.registration(name, inputs, outputs, rate_rps=100), name.encode())
            for name in INPUTS:
                cluster.admin.wait_for_state(name, "ready")
            for _ in range(given.rounds):
                for name in INPUTS:
                    for clients in CLIENTS:
                        for protocol, flags in PROTOCOLS.items():
                            run = load(cluster, name, flags, clients, given.seconds, Path(folder) / "report.csv")
                            found[name][clients, protocol].append(run)
                            print(json.dumps([name, clients, protocol, vars(run)]), flush=True)
        finally:
            cluster.close()
    if given.write:
        REPORT.write_text(f"""# gRPC beside HTTP

Made by `cargo xtask bench grpc` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

NVIDIA's `perf_analyzer`, unmodified, as a closed loop with binary tensors for {given.seconds:g} s each; medians of {given.rounds} rounds, the protocols in turn.
The simulated device takes {BATCH_MS} ms for a batch. Client, gateway and worker share the cores, and the clients of `perf_analyzer` are two, one for each protocol: what they take themselves is in requests/s and latencies, and not in the gateway's processor time per request.
A yardstick that is only a server of gRPC was not measured.

## {4 * INPUTS["image"]:,} bytes

{table(found["image"])}

## {4 * INPUTS["small"]} bytes

{table(found["small"])}
""")


if __name__ == "__main__":
    main()
