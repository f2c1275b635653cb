"""Attacks of one key beside another one on the same model, and what the quiet key sees of them; `isolation.py` writes the page."""

import itertools
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import models
from cluster import Cluster
from conftest import simulated_devices
from hostile import SMALL, MemoryWatch, Victim, again, attack, in_threads, many, post, read_answer, sink, tuple_address

BATCH_MS = 50.0
SLO_MS = 400
# The largest p99 beside an attack that is wanted, in times of that alone.
GOAL = 1.5
# The quiet key has several clients, each with a connection and this many requests/s.
QUIET_CLIENTS = 4
QUIET_RPS = 10.0
BUDGET = 64 << 20
CONNECTIONS = 256
IN_FLIGHT = 8
WIDE = 8_000_000  # numbers of UINT8: more than sockets hold
# 100 KB of JSON, which the pool parses.
LARGE = json.dumps({**json.loads(SMALL), "filler": "x" * 100_000}).encode()
# 1 MB of numbers with a mistake at the end.
BAD = b'{"inputs":[{"name":"x","data":[' + b"0.12345678," * 95_000 + b"!"


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


def flood(address, key):
    in_threads(128, again, address, post("m", SMALL, bearer(key)))


def large_json(address, key):
    in_threads(32, again, address, post("m", BAD, bearer(key)))


def slow_bodies(address, key):
    """Bodies of 2 MB of which half comes at once and the rest never."""
    begin = post("m", b" " * 2_000_000, bearer(key))[:-1_000_000]
    many(address, 100, begin, lambda connection: connection.sendall(b" " * 100), 0.5)


def regions(address, key):
    """As many regions as there are, again and again."""
    body = json.dumps({"key": OBJECT, "byte_size": 64}).encode()
    number = 0
    with socket.create_connection(address) as connection:
        while True:
            path = f"/v2/systemsharedmemory/region/{number % 1000}/register"
            request = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{bearer(key)}content-length: {len(body)}\r\n\r\n"
            connection.sendall(request.encode() + body)
            read_answer(connection)
            number += 1


def silent_connections(address, key):
    """More connections than there are places, from another address, opened anew whenever one is closed."""
    held: list[socket.socket] = []
    while True:
        for connection in list(held):
            try:
                closed = not connection.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                closed = False
            except OSError:
                closed = True
            if closed:
                held.remove(connection)
                connection.close()
        try:
            while len(held) < 2 * CONNECTIONS:
                held.append(socket.create_connection(address, timeout=5, source_address=("127.0.0.2", 0)))
        except OSError:
            pass
        time.sleep(0.05)


def unread_answers(address, key):
    many(address, 64, post("wide", SMALL, bearer(key)), None, 0.5)


def niced(work, address, key):
    """Attacks with what processor time the others leave: attackers are on other machines."""
    os.nice(10)
    work(address, key)


OBJECT = f"/packhorse-{os.getpid()}-keys"


class Quiet(Victim):
    """A client of the quiet key: one request at a time at a steady rate."""

    def __init__(self, address, key: str, body: bytes = SMALL, per_second: float = QUIET_RPS, anew: bool = False):
        super().__init__(address, "m", per_second)
        self.request = post("m", body, bearer(key) + ("connection: close\r\n" if anew else ""))


class Registering(Victim):
    """A client that registers a region of shared memory and removes it, in turn."""

    numbers = itertools.count()

    def __init__(self, address, key: str):
        super().__init__(address, "m", QUIET_RPS)
        body = json.dumps({"key": OBJECT, "byte_size": 64}).encode()
        head = f"POST /v2/systemsharedmemory/region/quiet-{next(self.numbers)}/{{}} HTTP/1.1\r\nhost: localhost\r\n{bearer(key)}content-length: {{}}\r\n\r\n"
        self.requests = [head.format("register", len(body)).encode() + body, head.format("unregister", 0).encode()]

    @property
    def request(self) -> bytes:
        self.requests.reverse()
        return self.requests[1]

    @request.setter
    def request(self, _):
        pass


@dataclass
class Attack:
    """An attack of the greedy key, and what the quiet one does meanwhile."""

    on: str
    greedy: str
    quiet: str
    work: Callable
    client: Callable


ATTACKS = [
    Attack("the queue", "128 connections with small requests", "small requests", flood, Quiet),
    Attack("the parse pool", "32 connections with 1 MB of bad JSON each", "100 KB of JSON", large_json, lambda a, k: Quiet(a, k, LARGE, 2.5)),
    Attack("memory", "100 bodies of 2 MB that do not end", "small requests", slow_bodies, Quiet),
    Attack("regions", "registrations without end", "registers and removes a region", regions, Registering),
    Attack("connections", f"{2 * CONNECTIONS} silent ones for {CONNECTIONS} places", "a connection for each request", silent_connections, lambda a, k: Quiet(a, k, anew=True)),
    Attack("in-flight", f"64 connections that read none of their answers of {WIDE / 1e6:.0f} MB, at most {IN_FLIGHT} at once", "small requests", unread_answers, Quiet),
]


@dataclass
class Seen:
    """What the quiet key saw."""

    p50_ms: float
    p99_ms: float
    statuses: dict[int | str, int]
    memory: float

    @property
    def sent(self) -> int:
        return sum(self.statuses.values())

    @property
    def refused(self) -> int:
        return self.sent - self.statuses.get(200, 0)


def keys_cluster(folder: Path) -> tuple[Cluster, str, str]:
    """A cluster with a model and a wide one, and the keys of a greedy and of a quiet client."""
    flags = ["--policy", "exclusive", "--payload-budget-bytes", BUDGET, "--max-connections", CONNECTIONS, "--client-timeout-ms", 3000]
    flags += ["--inference-keys", "required", "--system-shared-memory"]
    cluster = Cluster(folder, *map(str, flags))
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": BATCH_MS, "wide": BATCH_MS}, devices=2))
    wide = [models.tensor("x", "FP32", [-1, 4])], [models.tensor("y", "UINT8", [-1, WIDE])]
    for registration in [models.simulated("m", slo_ms=SLO_MS), models.registration("wide", *wide, rate_rps=10)]:
        cluster.admin.register(registration, f"the file of {registration['name']}".encode())
    for name in ("m", "wide"):
        cluster.admin.wait_for_state(name, "ready")
    made = []
    for name, limits in [("greedy", [{"model": "wide", "max_in_flight": IN_FLIGHT}]), ("quiet", [])]:
        answer = cluster.admin.call("POST", "/v1/keys", {"name": name, "scopes": ["infer:*"], "model_limits": limits})
        assert answer.status == 201, answer
        made.append(answer.json()["key"])
    return cluster, made[0], made[1]


def look(cluster: Cluster, client: Callable[[], Victim], seconds: float) -> Seen:
    """What the clients see in this time, together."""
    clients = [client() for _ in range(QUIET_CLIENTS)]
    with MemoryWatch(cluster.gateway.pid) as memory, ExitStack() as running:
        for each in clients:
            running.enter_context(each)
        time.sleep(seconds)
    ordered = sorted(latency for each in clients for latency in each.latencies)
    at = lambda quantile: ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] * 1e3
    statuses = Counter(status for each in clients for status in each.statuses)
    return Seen(at(0.5), at(0.99), dict(statuses), memory.largest / 2**20)


def measure(folder: Path, seconds: float, rounds: int) -> dict[str, dict[str, list[Seen]]]:
    """For every attack, what the quiet key saw alone, beside the attack on a sink, and beside that on the gateway, in turn."""
    found = {}
    with open(f"/dev/shm{OBJECT}", "wb") as file:
        file.truncate(64)
    cluster, greedy, quiet = keys_cluster(folder)
    try:
        address = tuple_address(cluster.inference)
        look(cluster, lambda: Quiet(address, quiet), 1)
        with sink() as sink_address:
            for each in ATTACKS:
                seen = found[each.on] = {"alone": [], "sink": [], "attack": []}
                client = lambda: each.client(address, quiet)
                for _ in range(rounds):
                    seen["alone"].append(look(cluster, client, seconds))
                    for name, target in [("sink", sink_address), ("attack", address)]:
                        with attack(lambda target: niced(each.work, target, greedy), target):
                            time.sleep(1.5)  # the attack builds up
                            seen[name].append(look(cluster, client, seconds))
                        time.sleep(0.5)
                print(each.on, seen, flush=True)
    finally:
        os.unlink(f"/dev/shm{OBJECT}")
        cluster.close()
    return found


def verdict(found: dict[str, dict[str, list[Seen]]]) -> str:
    """Says which attacks miss the goal."""
    missed = []
    for on, seen in found.items():
        p99 = lambda name: median(one.p99_ms for one in seen[name])
        statuses = sum((Counter(one.statuses) for one in seen["attack"]), Counter())
        refused = ", ".join(f"{count} answers {status}" for status, count in statuses.items() if status != 200)
        if p99("attack") > GOAL * p99("alone") or refused:
            times = f"{p99('attack') / p99('alone'):.2f} times that alone, {p99('attack') / p99('sink'):.2f} times that beside the sink"
            missed.append(f"{on} ({times}; {refused or 'nothing'} refused)")
    goal = f"The goal is a p99 of at most {GOAL} times that alone, and that nothing of the quiet key is refused."
    return f"{goal}\n" + (f"It is missed by the attack on {', and that on '.join(missed)}." if missed else "All attacks are within it.")


def table(found: dict[str, dict[str, list[Seen]]]) -> list[str]:
    lines = [
        "| attack on | the greedy key | the quiet key | p50 / p99 ms alone | beside the sink | beside the attack | p99 to alone | p99 to the sink | refused | memory MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in ATTACKS:
        seen = found[each.on]
        of = lambda name, what: median(getattr(one, what) for one in seen[name])
        times = [f"{of(name, 'p50_ms'):.1f} / {of(name, 'p99_ms'):.1f}" for name in seen]
        refused, sent = (sum(getattr(one, what) for one in seen["attack"]) for what in ("refused", "sent"))
        alone, sinks, attacked = (of(name, "p99_ms") for name in seen)
        memory = max(one.memory for one in seen["attack"])
        lines.append(
            f"| {each.on} | {each.greedy} | {each.quiet} | {' | '.join(times)} | {attacked / alone:.2f} | {attacked / sinks:.2f} | {refused} of {sent} | {memory:.0f} |"
        )
    return lines
