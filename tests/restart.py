"""Measures how soon a gateway with a thousand models serves again after it was killed; writes docs/benchmarks/restart.md.

    cargo xtask bench restart
"""

import argparse
import http.client
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import models
from cluster import BUILD, Cluster, processes_of, wait_until
from conftest import simulated_devices

REPORT = Path(__file__).parent.parent / "docs/benchmarks/restart.md"
DEVICES = 2
PAUSE = 8.0


@dataclass
class Restart:
    """Seconds since the new process was started."""

    listens: float
    ready: float
    answers: float


def status(address: str, method: str, path: str, body: bytes | None = None) -> int | None:
    """The status of an answer; none without one."""
    try:
        connection = http.client.HTTPConnection(address, timeout=5)
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None


def ready(cluster: Cluster) -> bool:
    return status(cluster.inference, "GET", "/v2/health/ready") == 200


def answers(cluster: Cluster, model: str) -> bool:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return status(cluster.inference, "POST", f"/v2/models/{model}/infer", body) == 200


def served(cluster: Cluster) -> list[str]:
    return [model["name"] for model in cluster.admin.get("/v1/models") if model["state"] == "ready"]


def workers(cluster: Cluster) -> set[int]:
    """The processes of the node: the agent and its workers."""
    return set(processes_of(cluster.folder)) - {cluster.gateway.pid}


def generation(cluster: Cluster) -> int:
    return cluster.admin.get("/v1/plan")["generation"]


def restart(cluster: Cluster, model: str) -> Restart:
    cluster.gateway.kill()
    begin = time.perf_counter()
    cluster.start_gateway()
    listens = time.perf_counter() - begin
    wait_until(lambda: ready(cluster), "the gateway to be ready")
    is_ready = time.perf_counter() - begin
    wait_until(lambda: answers(cluster, model), "an answer")
    return Restart(listens, is_ready, time.perf_counter() - begin)


def measure(folder: Path, count: int, rounds: int) -> tuple[list[Restart], int]:
    """Restarts, and the number of workers, none of which was replaced."""
    names = [f"model-{number}" for number in range(count)]
    cluster = Cluster(folder)
    try:
        for name in names:
            cluster.admin.register(models.simulated(name), b"the file of every model")
        # The profiles are imported, so that none is measured.
        flags = simulated_devices(cluster, dict.fromkeys(names, 5.0), DEVICES)
        profiles = (cluster.folder / "profiles.csv").read_bytes()
        assert cluster.admin.call("PUT", "/v1/profiles", profiles).status == 200
        cluster.start_agent("node1", *flags)

        def settled() -> bool:
            states = {model["state"] for model in cluster.admin.get("/v1/models")}
            return "ready" in states and states <= {"ready", "unplaced"}

        wait_until(settled, "the models to be served", limit=120.0)
        model, before = served(cluster)[0], (workers(cluster), generation(cluster))
        print(f"{count} models, {len(served(cluster))} of them served by {len(before[0]) - 1} workers", flush=True)
        restarts = []
        for _ in range(rounds):
            restarts.append(restart(cluster, model))
            print(restarts[-1], flush=True)
            wait_until(settled, "the cluster to settle", limit=60.0)
            assert (workers(cluster), generation(cluster)) == before, "something moved"
        os.kill(cluster.gateway.pid, signal.SIGSTOP)
        time.sleep(PAUSE)
        os.kill(cluster.gateway.pid, signal.SIGCONT)
        wait_until(lambda: answers(cluster, model), "an answer after the pause")
        wait_until(settled, "the cluster to settle after the pause", limit=60.0)
        assert (workers(cluster), generation(cluster)) == before, "something moved in the pause"
        return restarts, len(before[0]) - 1
    finally:
        cluster.close()


def write(restarts: list[Restart], count: int, served_by: int) -> None:
    rows = []
    for field, text in (("listens", "it listens"), ("ready", "`/v2/health/ready` is 200"), ("answers", "a model answers")):
        seconds = [getattr(one, field) for one in restarts]
        rows.append(f"| {text} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")
    REPORT.write_text(f"""# A restart with many models

Made by `cargo xtask bench restart` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

A gateway with {count:,} registered models and one node with {DEVICES} simulated devices, on which {served_by} workers serve what fits, is killed (SIGKILL) and started again {len(restarts)} times. The seconds
count from the start of the new process. After each restart, and after a pause of the gateway of {PAUSE:g} s (SIGSTOP), the plan has the same generation and the node has the same
processes; the run fails otherwise.

| until | seconds, median | largest |
|---|--:|--:|
{chr(10).join(rows)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000, help="number of models")
    parser.add_argument("--rounds", type=int, default=5, help="number of restarts")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        restarts, served_by = measure(Path(folder), given.models, given.rounds)
    if given.write:
        write(restarts, given.models, served_by)


if __name__ == "__main__":
    main()
