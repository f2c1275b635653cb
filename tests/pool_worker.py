"""Measures what many small models take in processes of their own, and in one that they share; writes docs/benchmarks/pool-worker.md.

    cargo xtask bench pool-worker
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import models
import torch
import urllib3
from cluster import BUILD, Cluster, processes_of, wait_until

REPORT = Path(__file__).parent.parent / "docs/benchmarks/pool-worker.md"
WIDTH = 1024
LIMIT = 600.0


@dataclass(frozen=True)
class Case:
    """A way to serve the models, as the page names it."""

    name: str
    # The most models with a process of their own.
    own: int = 8
    # Whether nothing is known of the models, so that each is measured at the first start.
    measured: bool = False


CASES = [
    Case("a process for each model", own=1000),
    Case("the default: all share one"),
    Case("the default, and each is measured first", measured=True),
]


@dataclass
class Measured:
    start: float
    restart: float
    processes: int
    private_mib: float
    threads: int
    p50_ms: float
    p99_ms: float


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def workers(cluster: Cluster) -> set[int]:
    shown = cluster.admin.get("/v1/models")
    return {replica["pid"] for model in shown for replica in cluster.admin.get(f"/v1/models/{model['name']}")["replicas"]}


def served(cluster: Cluster, count: int) -> bool:
    return sum(model["state"] == "ready" for model in cluster.admin.get("/v1/models")) == count


def latencies_ms(cluster: Cluster, names: list[str], rounds: int) -> list[float]:
    """Of requests one after the other, each for the next model."""
    pool = urllib3.HTTPConnectionPool(cluster.inference)
    body = torch.ones(1, WIDTH).numpy().tobytes()
    header = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,{WIDTH}],"parameters":{{"binary_data_size":{len(body)}}}}}]}}'.encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    taken = []
    for turn in range(rounds + 1):
        for name in names:
            begin = time.perf_counter()
            answer = pool.urlopen("POST", f"/v2/models/{name}/infer", body=header + body, headers=headers)
            assert answer.status == 200, answer.data
            if turn > 0:
                taken.append((time.perf_counter() - begin) * 1000)
    return taken


def measure(case: Case, count: int, rounds: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            flags = ["--devices", "cpu", "--own-workers", str(case.own), "--stop-workers-on-exit"]
            agent = cluster.start_agent("node1", *flags)
            (node,) = cluster.admin.get("/v1/nodes")
            names = [f"model-{number}" for number in range(count)]
            if not case.measured:
                csv = models.profiles(Path(folder), dict.fromkeys(names, 1.0), kind=node["devices"][0]["kind"])
                assert cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes().replace(b",500,30,30,30", b",200,,,")).status == 200
            assert agent.stop() == 0
            x, y = models.tensor("x", "FP32", [-1, WIDTH]), models.tensor("y", "FP32", [-1, 8])
            for number, name in enumerate(names):
                torch.manual_seed(number)
                module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 8))
                model = models.make(Path(folder), module, models.registration(name, [x], [y]))
                cluster.admin.register(model.registration, model.file)

            def begin() -> float:
                since = time.perf_counter()
                cluster.start_agent("node1", *flags)
                wait_until(lambda: served(cluster, count), "all models to be served", limit=LIMIT)
                return time.perf_counter() - since

            start = begin()
            assert cluster.agents["node1"].stop() == 0
            wait_until(lambda: not set(processes_of(cluster.folder)) - {cluster.gateway.pid}, "the node to end")
            restart = begin()
            pids = workers(cluster)
            taken = latencies_ms(cluster, names, rounds)
            p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
            threads = sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)
            return Measured(start, restart, len(pids), sum(map(private_mib, pids)), threads, p50, p99)
        finally:
            cluster.close()


def write(measured: dict[Case, list[Measured]], count: int) -> None:
    rows = []
    for case, all_of in measured.items():
        median = {field: statistics.median(getattr(one, field) for one in all_of) for field in Measured.__dataclass_fields__}
        cells = [f"{median['start']:.1f}", f"{median['restart']:.1f}", f"{median['processes']:.0f}", f"{median['private_mib']:,.0f}"]
        cells += [f"{median['threads']:.0f}", f"{median['p50_ms']:.2f}", f"{median['p99_ms']:.2f}"]
        rows.append(f"| {case.name} (`--own-workers {case.own}`) | {' | '.join(cells)} |")
    (rounds,) = {len(all_of) for all_of in measured.values()}
    REPORT.write_text(f"""# Many small models in one process

Made by `cargo xtask bench pool-worker` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

A node with one CPU serves {count} models of 4 MB, each with weights of its own.
Their profiles are imported, so that none is measured, but for the last case.
The cases take turns, {rounds} times; the medians count.
The seconds are from the start of the agent until all models are served: the first time, when it fetches their files, and after the agent and all workers were stopped.
Memory and threads are those of the workers together.
The latency is that of single requests, one after the other, each for the next model.

| case | first start, s | restart, s | processes | private memory, MiB | threads | p50, ms | p99, ms |
|---|--:|--:|--:|--:|--:|--:|--:|
{chr(10).join(rows)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40, help="number of models")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each case")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="measure this case only")
    given = parser.parse_args()
    cases = CASES if given.case is None else [CASES[given.case]]
    measured: dict[Case, list[Measured]] = {case: [] for case in cases}
    for _ in range(given.rounds):
        for case, all_of in measured.items():
            all_of.append(measure(case, given.models, 20))
            print(case.name, all_of[-1], flush=True)
    if given.write:
        write(measured, given.models)


if __name__ == "__main__":
    main()
