"""Serves far more models than fit into memory, on one CPU; writes docs/benchmarks/many-models.md.

    cargo xtask bench many-models
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import models
import torch
from cluster import BUILD, Cluster, cpu_seconds, wait_until
from pool_worker import served, workers

REPORT = Path(__file__).parent.parent / "docs/benchmarks/many-models.md"
WIDTH = 1024
# Two matrices of 4 MiB, which a request passes so often that the device computes for a few milliseconds.
WEIGHTS_MIB = 8
PASSES = 10
SLO_MS = 100
LIMIT = 1200.0


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.passes = PASSES

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.passes):
            x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return x[:, :8]


@dataclass
class Measured:
    room: int
    limit_mib: float
    most_mib: float
    rate: float
    busy: float
    requests: int
    in_time: float
    lost: int
    p50_ms: float
    p99_ms: float
    first_ms: float
    copies: float
    start_s: float


@dataclass
class Watch:
    """The most resident memory of a process, sampled every few milliseconds."""

    pid: int
    most: int = 0
    ends: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        # A process that has ended has no memory.
        with contextlib.suppress(OSError, StopIteration):
            while not self.ends.wait(0.003):
                self.most = max(self.most, resident_kib(self.pid))

    def stop(self) -> float:
        self.ends.set()
        self.thread.join()
        return self.most / 1024


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


BODY = torch.linspace(-1, 1, WIDTH).numpy().tobytes()
HEADER = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,{WIDTH}],"parameters":{{"binary_data_size":{len(BODY)}}}}}]}}'.encode()
HEADERS = {"Inference-Header-Content-Length": str(len(HEADER))}


async def ask(session: aiohttp.ClientSession, base: str, name: str) -> tuple[int, float]:
    begin = time.perf_counter()
    async with session.post(f"{base}/v2/models/{name}/infer", data=HEADER + BODY, headers=HEADERS) as answer:
        await answer.read()
        return answer.status, (time.perf_counter() - begin) * 1000


async def each_once(base: str, names: list[str]) -> list[float]:
    async with aiohttp.ClientSession() as session:
        answers = [await ask(session, base, name) for name in names]
    assert all(status == 200 for status, _ in answers), answers
    return [taken for _, taken in answers]


async def traffic(base: str, names: list[str], rate: float, seconds: float, seed: int) -> list[tuple[int, float]]:
    """Requests that arrive at random, for models by Zipf's law."""
    drawn = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(names))]
    order = names[:]
    drawn.shuffle(order)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = []
        due = time.perf_counter()
        end = due + seconds
        while due < end:
            due += drawn.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            (name,) = drawn.choices(order, weights)
            tasks.append(asyncio.create_task(ask(session, base, name)))
        return await asyncio.gather(*tasks)


def copies(cluster: Cluster) -> float:
    return cluster.admin.metric("packhorse_weights_loads_total")


def base_mib(folder: Path, file: Path, registration: dict) -> float:
    """The memory of the pool with one model, without its weights."""
    with contextlib.closing(Cluster(folder)) as cluster:
        prepare(cluster, folder, ["one"], ["--devices", "cpu:1", "--own-workers", "0", "--stop-workers-on-exit"])
        cluster.admin.register({**registration, "name": "one"}, file)
        wait_until(lambda: served(cluster, 1), "the model to be served", limit=LIMIT)
        asyncio.run(each_once(f"http://{cluster.inference}", ["one"]))
        (pid,) = workers(cluster)
        return resident_kib(pid) / 1024 - WEIGHTS_MIB


def prepare(cluster: Cluster, folder: Path, names: list[str], flags: list[str]) -> None:
    """Starts a node and imports the profiles of its models, so that none is measured."""
    cluster.start_agent("node1", *flags)
    (node,) = cluster.admin.get("/v1/nodes")
    csv = models.profiles(folder, dict.fromkeys(names, 8.0), kind=node["devices"][0]["kind"])
    answer = cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes().replace(b",500,30,30,30", b",250,,,"))
    assert answer.status == 200, answer


def measure(room: int, count: int, rate: float, seconds: float, base: float) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What a model has beside its weights, and what loading one takes.
        limit = base + room * WEIGHTS_MIB + count * 1.1 + 5 * WEIGHTS_MIB
        with contextlib.closing(Cluster(folder)) as cluster:
            names = [f"model-{number}" for number in range(count)]
            memory = f"cpu0={limit:.0f}MiB"
            flags = ["--devices", "cpu:1", "--own-workers", "0", "--stop-workers-on-exit", "--device-memory", memory]
            prepare(cluster, folder, names, flags)
            since = time.perf_counter()
            x, y = models.tensor("x", "FP32", [-1, WIDTH]), models.tensor("y", "FP32", [-1, 8])
            watch = None
            for number, name in enumerate(names):
                torch.manual_seed(number)
                registration = models.registration(name, [x], [y]) | {"slo_ms": SLO_MS, "max_batch_size": 4}
                model = models.make(folder, Deep(), registration)
                cluster.admin.register(model.registration, model.file)
                model.file.unlink()
                if watch is None and (pids := workers(cluster) - {None}):
                    watch = Watch(*pids)
            wait_until(lambda: served(cluster, count), "all models to be served", limit=LIMIT)
            start = time.perf_counter() - since
            url = f"http://{cluster.inference}"
            (pid,) = workers(cluster)
            # Most are not in memory when they are asked for.
            first = asyncio.run(each_once(url, names))
            before, computed = copies(cluster), cpu_seconds(pid)
            answers = asyncio.run(traffic(url, names, rate, seconds, seed=room))
            busy = (cpu_seconds(pid) - computed) / seconds
            taken = [ms for status, ms in answers if status == 200]
            lost = sum(status not in (200, 503, 504) for status, _ in answers)
            in_time = sum(ms <= SLO_MS for ms in taken) / len(answers)
            p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
            most = watch.stop()
            made = copies(cluster) - before
            return Measured(room, limit, most, rate, busy, len(answers), 100 * in_time, lost, p50, p99, statistics.median(first), made / seconds, start)


def write(measured: list[Measured], count: int, seconds: float) -> None:
    rows = []
    for one in measured:
        cells = [f"{one.room}", f"{one.limit_mib:,.0f}", f"{one.most_mib:,.0f}", f"{one.rate:.0f}", f"{100 * one.busy:.0f}", f"{one.requests:,}"]
        cells += [f"{one.in_time:.2f}", f"{one.lost}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.first_ms:.1f}", f"{one.copies:.1f}"]
        rows.append(f"| {' | '.join(cells)} |")
    REPORT.write_text(f"""# Two hundred models in the memory of twenty

Made by `cargo xtask bench many-models` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

One CPU serves {count} models, each with {WEIGHTS_MIB} MiB of weights of its own, in one process.
`--device-memory` has room for the weights of a few of them at a time.
Requests arrive at random for {seconds:.0f} s, for models by Zipf's law, with an SLO of {SLO_MS} ms.
*Busy* is the processor time of the process over the time: the device computes on one core.
*First* is the median latency of one request for each model, one after the other: the weights of most are not in memory then.
The memory is that of the process as `ps` shows it, with the libraries, sampled every 3 ms from the first model's load to the end.

| room for models | limit, MiB | most memory, MiB | requests/s | busy, % | requests | in time, % | lost | p50, ms | p99, ms | first, ms | copies/s |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{chr(10).join(rows)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200, help="number of models")
    parser.add_argument("--room", type=int, nargs="+", default=[10, 20, 50], help="numbers of models with room for their weights")
    parser.add_argument("--rate", type=float, default=80.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of the traffic")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        x, y = models.tensor("x", "FP32", [-1, WIDTH]), models.tensor("y", "FP32", [-1, 8])
        registration = models.registration("one", [x], [y]) | {"slo_ms": SLO_MS, "max_batch_size": 4}
        model = models.make(Path(name), Deep(), registration)
        base = base_mib(Path(name), model.file, registration)
    measured = []
    for room in given.room:
        measured.append(measure(room, given.models, given.rate, given.seconds, base))
        print(measured[-1], flush=True)
    if given.write:
        write(measured, given.models, given.seconds)


if __name__ == "__main__":
    main()
