"""Mixed hostile load for minutes or hours: memory and descriptors stay flat, and no answer is lost, doubled or someone else's.

    cargo xtask soak --minutes 60
    .venv/bin/python tests/soak.py --minutes 10 --write
"""

import argparse
import http.client
import json
import os
import platform
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import models
from cluster import BUILD, Cluster, wait_until
from hostile import ATTACKS, attack, tuple_address
from isolation import BUDGET, isolation_cluster

REPORT = Path(__file__).parent.parent / "docs/benchmarks/soak.md"
# Attacks at a time, and how long each goes on.
AT_ONCE, SECONDS_EACH = 2, 8.0
CLIENTS, PER_SECOND = 4, 25.0
# What resident memory may be above the budget, and grow by after the first sixth of the time.
ABOVE_BUDGET, GROWTH = 100 << 20, 32 << 20
# Descriptors that may be open more than before, when everybody has left.
MORE_DESCRIPTORS = 16
# What an honest client may be told while the machine is overloaded.
REFUSALS = {503, 504}


class Client(threading.Thread):
    """Asks a real model to double a number, again and again, and counts what comes back."""

    def __init__(self, address: str, number: int, ended: threading.Event):
        super().__init__(daemon=True)
        self.address, self.number, self.ended = address, number, ended
        self.statuses: Counter[int] = Counter()
        self.mistakes: list[str] = []
        self.latencies: list[float] = []
        self.sent = 0

    def run(self) -> None:
        connection = None
        due = time.monotonic()
        while not self.ended.is_set():
            due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            connection = connection or http.client.HTTPConnection(self.address, timeout=70)
            self.sent += 1
            name, value = f"{self.number}-{self.sent}", self.number * 1_000_000 + self.sent % 1_000_000
            x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, -value]}
            begin = time.monotonic()
            try:
                connection.request("POST", "/v2/models/double/infer", json.dumps({"id": name, "inputs": [x]}))
                answer = connection.getresponse()
                status, body = answer.status, answer.read()
                if answer.getheader("connection") == "close":
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                self.mistakes.append(f"{name}: no answer: {error!r}")
                connection = None
                continue
            self.latencies.append(time.monotonic() - begin)
            self.statuses[status] += 1
            if status == 200:
                found = json.loads(body)
                if found["id"] != name or found["outputs"][0]["data"] != [2 * value, -2 * value]:
                    self.mistakes.append(f"{name}: {body[:200]!r}")
            elif status not in REFUSALS:
                self.mistakes.append(f"{name}: {status}: {body[:200]!r}")


@dataclass
class Sample:
    """What the processes held at one moment."""

    at_s: float
    gateway_mib: float
    agent_mib: float
    workers_mib: float
    descriptors: int


@dataclass
class Result:
    """What came of it."""

    samples: list[Sample] = field(default_factory=list)
    statuses: Counter = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    attacks: Counter = field(default_factory=Counter)
    killed: int = 0
    sent: int = 0
    answered: int = 0
    counted: int = 0
    descriptors_before: int = 0
    descriptors_after: int = 0


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def soak(folder: Path, seconds: float, seed: int = 1) -> Result:
    """Attacks a cluster for so long, beside honest clients of a real model, and asserts what must hold."""
    chance = random.Random(seed)
    cluster = isolation_cluster(folder)
    result = Result()
    try:
        cluster.start_agent("cpu-node", "--devices", "cpu", "--stop-workers-on-exit")
        (kind,) = {d["kind"] for node in cluster.admin.get("/v1/nodes") if node["name"] == "cpu-node" for d in node["devices"]}
        csv = models.profiles(folder, {"double": 5}, kind=kind)
        assert cluster.admin.call("PUT", "/v1/profiles", csv.read_bytes()).status == 200
        model = models.double(folder)
        cluster.admin.register(model.registration, model.file)
        cluster.admin.wait_for_state("double", "ready", limit=120)
        address = tuple_address(cluster.inference)
        gateway, agent = cluster.gateway.pid, cluster.agents["node1"].pid
        result.descriptors_before = descriptors(gateway)
        ended = threading.Event()
        clients = [Client(cluster.inference, number + 1, ended) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        begin = time.monotonic()
        next_kill = begin + 20
        while time.monotonic() - begin < seconds:
            chosen = chance.sample(list(ATTACKS), AT_ONCE)
            result.attacks.update(chosen)
            until = min(time.monotonic() + SECONDS_EACH, begin + seconds)
            with attack(ATTACKS[chosen[0]], address), attack(ATTACKS[chosen[1]], address):
                while time.monotonic() < until:
                    time.sleep(0.5)
                    workers = sum(resident(pid) for name in ("small", "image", "wide", "victim") for pid in cluster.worker_pids(name))
                    sizes = [resident(gateway), resident(agent), workers]
                    sample = Sample(time.monotonic() - begin, *(size / 2**20 for size in sizes), descriptors(gateway))
                    result.samples.append(sample)
                    if time.monotonic() > next_kill:
                        next_kill += 20
                        for pid in cluster.worker_pids(chance.choice(["small", "image", "wide"])):
                            os.kill(pid, signal.SIGKILL)
                            result.killed += 1
        ended.set()
        for client in clients:
            client.join(80)
            assert not client.is_alive(), "a client still waits for its answer"
            assert not client.mistakes, client.mistakes[:5]
            result.statuses += client.statuses
            result.latencies += client.latencies
            result.sent += client.sent
        result.answered = result.statuses[200]
        wait_until(lambda: cluster.admin.metric("packhorse_memory_used_bytes") == 0, "the memory to be released", limit=90)
        result.counted = int(cluster.admin.metric("nv_inference_request_success", model="double"))
        few = result.descriptors_before + MORE_DESCRIPTORS
        wait_until(lambda: descriptors(gateway) <= few, "the descriptors to be closed", limit=90)
        result.descriptors_after = descriptors(gateway)
    finally:
        cluster.close()
    check(result)
    return result


def check(result: Result) -> None:
    """Asserts that nothing was lost or doubled, and that memory stayed flat."""
    assert sum(result.statuses.values()) == result.sent, (result.statuses, result.sent)
    assert result.answered > 0
    assert result.counted == result.answered, "the gateway and its clients count other numbers of answers"
    largest = max(sample.gateway_mib for sample in result.samples)
    assert largest * 2**20 < BUDGET + ABOVE_BUDGET, f"{largest:.0f} MiB"
    settled = result.samples[len(result.samples) // 6 :]
    early, late = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    if result.samples[-1].at_s >= 240:
        growth = max(sample.gateway_mib for sample in late) - max(sample.gateway_mib for sample in early)
        assert growth * 2**20 < GROWTH, f"memory grew by {growth:.0f} MiB"


def at(times: list[float], quantile: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] * 1e3


def write(result: Result, minutes: float) -> None:
    rows = ["| minute | gateway MiB, largest | agent MiB | workers MiB | descriptors, most |", "|---|---|---|---|---|"]
    for minute in range(int(minutes)):
        inside = [sample for sample in result.samples if minute * 60 <= sample.at_s < (minute + 1) * 60]
        if inside:
            most = [max(getattr(s, name) for s in inside) for name in ("gateway_mib", "agent_mib", "workers_mib", "descriptors")]
            rows.append(f"| {minute + 1} | {most[0]:.0f} | {most[1]:.0f} | {most[2]:.0f} | {most[3]} |")
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(result.statuses.items()))
    attacks = ", ".join(f"{name.split(':')[0]} {count}" for name, count in result.attacks.most_common())
    REPORT.write_text(f"""# Mixed hostile load

Made by `cargo xtask soak --minutes {minutes:g}` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build of gateway, agents and workers; the load average
at the end was {os.getloadavg()[1]:.1f}. Two attacks of [isolation.md](isolation.md) at a time, drawn by chance, go on for {SECONDS_EACH:g} s each against three models on simulated devices,
whose workers are killed now and then. Beside them {CLIENTS} clients ask a TorchScript model on the CPU, {PER_SECOND:g} times a second each, to double numbers that no other
request has.

* Attacks: {attacks}. Workers killed: {result.killed}.
* Requests of the honest clients: {result.sent}; answers: {statuses}. Each was answered once, and each 200 with its own id and its own numbers; the gateway
  counts {result.counted} answers, the clients {result.answered}. Median {at(result.latencies, 0.5):.1f} ms, 99th percentile {at(result.latencies, 0.99):.0f} ms.
* Descriptors of the gateway: {result.descriptors_before} before, {result.descriptors_after} after everybody had left.
* The budget of requests is {BUDGET >> 20} MiB, and resident memory may be {ABOVE_BUDGET >> 20} MiB above it. The run fails if memory grows by {GROWTH >> 20} MiB between the halves of the time after
  the first sixth, if a descriptor too many stays open, or if an answer is missing, wrong, or counted otherwise than received.

{chr(10).join(rows)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), given.minutes * 60, given.seed)
    last = result.samples[-1]
    print(f"{result.sent} requests, {dict(result.statuses)}; at the end {last.gateway_mib:.0f} MiB, {result.descriptors_after} descriptors")
    if given.write:
        write(result, given.minutes)


if __name__ == "__main__":
    main()
