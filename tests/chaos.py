"""Real programs killed, stopped, cut off and started again at random, under load: every request ends once, what was acknowledged stays,
and everything heals.

    cargo xtask chaos --seconds 60 --seed 3
    cargo xtask chaos --pool

With `--pool` it is one real worker process of many models, whose weights do not all fit into its memory, so that it is killed in the middle
of loads, copies and batches.
"""

import argparse
import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import models
import torch
from cluster import Cluster, is_running, processes_of, wait_until
from conftest import simulated_devices
from http_admin import Admin
from network import Namespace, why_not

NODES, DEVICES = 3, 2
LATENCIES_MS = {"a": 10.0, "b": 20.0, "c": 40.0}
# Each client sends this many requests per second, whatever becomes of the earlier ones' model.
CLIENTS_PER_MODEL, PER_SECOND = 2, 15.0
SLO_MS = 1000
# What a client may be told while the cluster breaks: try again, it was too late, or its worker was lost.
ALLOWED = {200, 503, 504}
HEALED_S = 60.0
DATA = [1, 2, 3, 4]

# Of the pool: models with weights of 4 MiB, in a memory that has room for about half of them.
POOL_MODELS = 12
POOL_MEMORY_MIB = 420
WIDTH = 1024


class Client(threading.Thread):
    """Sends requests and notes the end of each."""

    def __init__(self, address: str, model: str, number: int, ended: threading.Event, per_second: float, output: list[float]):
        super().__init__(daemon=True)
        self.address, self.model, self.number, self.ended = address, model, number, ended
        self.per_second, self.output = per_second, output
        self.sent = 0
        self.ends: Counter[str] = Counter()
        self.mistakes: list[str] = []

    def run(self) -> None:
        connection = None
        due = time.monotonic()
        while not self.ended.is_set():
            due = max(due + 1 / self.per_second, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            connection = connection or http.client.HTTPConnection(self.address, timeout=20)
            self.sent += 1
            name = f"{self.model}-{self.number}-{self.sent}"
            x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": DATA}
            try:
                connection.request("POST", f"/v2/models/{self.model}/infer", json.dumps({"id": name, "inputs": [x]}))
                answer = connection.getresponse()
                status, body = answer.status, answer.read()
            except TimeoutError:
                self.mistakes.append(f"{name}: no end within 20 s")
                connection = None
                continue
            except (OSError, http.client.HTTPException):
                # The gateway died, or is not there.
                self.ends["broken"] += 1
                connection = None
                continue
            self.ends[str(status)] += 1
            if status not in ALLOWED:
                self.mistakes.append(f"{name}: {status}: {body[:200]!r}")
            elif status == 200:
                self.check(name, json.loads(body))
            if answer.getheader("connection") == "close":
                connection = None


    def check(self, name: str, answer: dict) -> None:
        (output,) = answer["outputs"]
        if answer["id"] != name:
            self.mistakes.append(f"{name}: the answer is that of {answer['id']}")
        elif output["data"] != self.output:
            self.mistakes.append(f"{name}: {output['data']}")


class Chaos:
    """A cluster and what is done to it."""

    # The requests per second of a client.
    per_second = PER_SECOND
    nodes = NODES

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]):
        self.random = random.Random(seed)
        self.say = say
        self.namespaces: list[Namespace] = []
        self.mended: dict[int, float] = {}
        self.stopped: dict[int, float] = {}
        self.cluster = self.start(folder)
        # What each model answers.
        self.outputs = self.register_models(folder)
        for name in self.outputs:
            self.cluster.admin.wait_for_state(name, "ready")
        self.acknowledged: set[str] = set()
        self.generation = 0
        self.done: Counter[str] = Counter()
        self.begin = time.monotonic()

    def register_models(self, folder: Path) -> dict[str, list[float]]:
        for name in LATENCIES_MS:
            # More than one device carries, so that each model has several replicas.
            registration = models.simulated(name, rate_rps=250, slo_ms=SLO_MS)
            self.cluster.admin.register(registration, f"the file of {name}".encode())
        return dict.fromkeys(LATENCIES_MS, [0.0, 0.0])

    def start(self, folder: Path) -> Cluster:
        """Starts gateway and agents; these in networks of their own if that can be."""
        flags = ["--lease-ms", "1500", "--policy", "first-fit"]
        reason = why_not()
        if reason:
            self.say(f"no node is cut off: {reason}")
            cluster = Cluster(folder, *flags)
            self.flags = simulated_devices(cluster, LATENCIES_MS, DEVICES)
        else:
            for name in ("link-secret", "token"):
                secret = folder / name
                secret.write_text(f"the-{name}-of-the-chaos-which-is-long-enough")
                secret.chmod(0o600)
            secret = ["--link-secret-file", str(folder / "link-secret")]
            cluster = Cluster(folder, *flags, *secret, "--admin-token-file", str(folder / "token"), admin_listen="0.0.0.0:0")
            self.flags = [*simulated_devices(cluster, LATENCIES_MS, DEVICES), *secret]
        try:
            if not reason:
                for node in range(NODES):
                    self.namespaces.append(Namespace(node))
            for node in range(NODES):
                namespace = self.namespaces[node] if self.namespaces else None
                cluster.start_agent(f"node{node}", *self.flags, namespace=namespace)
        except BaseException:
            self.close(cluster)
            raise
        return cluster

    def close(self, cluster: Cluster) -> None:
        self.resume(everything=True)
        try:
            cluster.close()
        finally:
            for namespace in self.namespaces:
                namespace.close()

    def note(self, text: str) -> None:
        self.say(f"{time.monotonic() - self.begin:7.2f} s  {text}")
        self.done[text.split(" ")[0] + " " + text.split(" ")[1]] += 1

    def pids(self, program: str) -> list[int]:
        return [pid for pid, name in processes_of(self.cluster.folder).items() if name == program]

    def step(self) -> None:
        """One fault."""
        chance = self.random.random()
        if chance < 0.15 and self.namespaces:
            self.cut_off()
        elif chance < 0.3:
            self.kill_worker()
        elif chance < 0.5:
            self.stop_one("packhorse-worker", 4.0)
        elif chance < 0.65:
            self.kill_agent()
        elif chance < 0.75:
            self.stop_one("packhorse-agent", 4.0)
        elif chance < 0.85:
            self.kill_gateway()
        elif chance < 0.92:
            self.stop_one("packhorse-gateway", 2.0)
        else:
            self.register()

    def cut_off(self) -> None:
        node, seconds = self.random.randrange(NODES), self.random.uniform(0.5, 8.0)
        if node not in self.mended:
            self.note(f"cut off node{node} for {seconds:.1f} s")
            self.namespaces[node].cut()
            self.mended[node] = time.monotonic() + seconds

    def kill_worker(self) -> None:
        workers = self.pids("packhorse-worker")
        if workers:
            pid = self.random.choice(workers)
            self.note(f"kill worker {pid}")
            os.kill(pid, signal.SIGKILL)

    def stop_one(self, program: str, longest: float) -> None:
        found = [pid for pid in self.pids(program) if pid not in self.stopped]
        if found:
            pid, seconds = self.random.choice(found), self.random.uniform(0.3, longest)
            self.note(f"stop {program.removeprefix('packhorse-')} {pid} for {seconds:.1f} s")
            os.kill(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + seconds

    def resume(self, everything: bool = False) -> None:
        """Lets those go on whose time is over."""
        for pid, until in list(self.stopped.items()):
            if everything or time.monotonic() >= until:
                del self.stopped[pid]
                if is_running(pid):
                    os.kill(pid, signal.SIGCONT)
        for node, until in list(self.mended.items()):
            if everything or time.monotonic() >= until:
                del self.mended[node]
                self.namespaces[node].mend()

    def kill_agent(self) -> None:
        name = self.random.choice(sorted(self.cluster.agents))
        self.note(f"kill agent of {name}")
        self.cluster.agents[name].kill()
        self.start_agent(name)

    def start_agent(self, name: str) -> None:
        """Starts it without waiting for its lease: the gateway may be stopped."""
        cluster = self.cluster
        started = type(cluster.agents[name])
        arguments = [*cluster.agents[name].popen.args]
        cluster.agents[name] = started(arguments, cluster.folder / f"{name}.log")

    def kill_gateway(self) -> None:
        self.note("kill gateway and start it again")
        self.cluster.gateway.kill()
        self.cluster.start_gateway()

    def register(self) -> None:
        """Registers a model that no device can serve; a 201 must outlive everything."""
        name = f"extra{len(self.acknowledged)}"
        self.note(f"register model {name}")
        try:
            self.admin().register(models.simulated(name, rate_rps=1), b"the file of an extra model")
        except Exception:  # noqa: BLE001 - refused or broken: then nothing was promised
            return
        self.acknowledged.add(name)

    def admin(self) -> Admin:
        return self.cluster.admin

    def look(self) -> None:
        """No plan takes the place of a later one."""
        if self.cluster.gateway.pid in self.stopped:
            return
        try:
            answer = self.admin().call("GET", "/v1/plan")
        except Exception:  # noqa: BLE001 - it may be dying
            return
        if answer.status == 200:
            generation = answer.json()["generation"]
            assert generation >= self.generation, f"plan {generation} after {self.generation}"
            self.generation = generation

    def heal(self) -> float:
        """Ends all faults; the time until everything serves."""
        self.resume(everything=True)
        begin = time.monotonic()

        def is_healthy() -> bool:
            ready = all(self.admin().get(f"/v1/models/{name}")["state"] == "ready" for name in self.outputs)
            nodes = self.admin().get("/v1/nodes")
            return ready and len(nodes) == self.nodes and all(node["state"] == "ready" for node in nodes)

        wait_until(is_healthy, "everything to heal", limit=HEALED_S)
        return time.monotonic() - begin


class Factor(torch.nn.Module):
    """`x` times a factor, by way of weights that do not change it."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.pad(x, [0, self.weight.size(0) - x.size(1)])
        return x * self.factor + ((wide * 0.0) @ self.weight)[:, : x.size(1)]


class PoolChaos(Chaos):
    """A process with many models, and what is done to it."""

    per_second = 4.0
    nodes = 1

    def start(self, folder: Path) -> Cluster:
        cluster = Cluster(folder, "--lease-ms", "1500")
        flags = ["--devices", "cpu", "--own-workers", "0", "--device-memory", f"cpu0={POOL_MEMORY_MIB}MiB"]
        cluster.start_agent("node0", *flags)
        return cluster

    def register_models(self, folder: Path) -> dict[str, list[float]]:
        x, y = (models.tensor(name, "FP32", [-1, len(DATA)]) for name in "xy")
        outputs = {}
        for factor in range(1, POOL_MODELS + 1):
            registration = models.registration(f"times-{factor}", [x], [y], slo_ms=SLO_MS, rate_rps=2)
            model = models.make(folder, Factor(float(factor)), registration)
            self.cluster.admin.register(model.registration, model.file)
            outputs[f"times-{factor}"] = [float(factor * x) for x in DATA]
        return outputs

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.4:
            self.kill_worker()
        elif chance < 0.55:
            self.stop_one("packhorse-worker", 2.0)
        elif chance < 0.75:
            self.kill_agent()
        elif chance < 0.9:
            self.kill_gateway()
        else:
            self.register()

    def pids(self, program: str) -> list[int]:
        """Those of the pool, and not the process that measures."""
        arguments = {pid: Path(f"/proc/{pid}/cmdline") for pid in super().pids(program)}
        return [pid for pid, of in arguments.items() if not of.exists() or b"profile" not in of.read_bytes().split(b"\0")]

    def heal(self) -> float:
        taken = super().heal()
        assert self.admin().metric("packhorse_weights_loads_total") > 0, "the weights did not all fit"
        return taken


def chaos(folder: Path, seconds: float, seed: int, say: Callable[[str], None] = print, of: type[Chaos] = Chaos) -> Counter:
    """Breaks a cluster for so long, and asserts what must hold. The ends of all requests."""
    chaos = of(folder, seed, say)
    cluster = chaos.cluster
    try:
        ended = threading.Event()
        clients = [
            Client(cluster.inference, model, number, ended, chaos.per_second, output)
            for model, output in chaos.outputs.items()
            for number in range(CLIENTS_PER_MODEL)
        ]
        for client in clients:
            client.start()
        chaos.begin = time.monotonic()
        due = chaos.begin + 1
        while time.monotonic() - chaos.begin < seconds:
            if time.monotonic() >= due:
                chaos.step()
                due = time.monotonic() + chaos.random.uniform(0.3, 2.5)
            chaos.resume()
            chaos.look()
            time.sleep(0.1)
        healed = chaos.heal()
        chaos.look()
        registered = {model["name"] for model in chaos.admin().get("/v1/models")}
        assert chaos.acknowledged <= registered, chaos.acknowledged - registered
        # From here on nothing may go wrong any more.
        before = sum((client.ends for client in clients), Counter())
        sent_before = sum(client.sent for client in clients)
        wait_until(lambda: sum(client.sent for client in clients) >= sent_before + 200, "200 more requests")
        ended.set()
        for client in clients:
            client.join(30)
            assert not client.is_alive(), "a client still waits for its answer"
            assert not client.mistakes, client.mistakes[:5]
            assert sum(client.ends.values()) == client.sent, (client.ends, client.sent)
        ends = sum((client.ends for client in clients), Counter())
        after = ends - before
        assert after["broken"] == 0, after
        assert after["200"] >= 0.9 * after.total(), after
        say(f"healed in {healed:.1f} s; {dict(chaos.done)}; ends of {ends.total()} requests: {dict(ends)}; afterwards {dict(after)}")
        return ends
    finally:
        chaos.close(cluster)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", action="store_true", help="one process of many models in a small memory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chaos(Path(folder), given.seconds, given.seed, of=PoolChaos if given.pool else Chaos)
