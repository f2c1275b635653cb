"""Measures what TLS costs, for clients and between gateway and worker; writes docs/benchmarks/tls.md.

    cargo xtask bench tls
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import models
from authority import Authority
from cluster import BUILD, PROGRAMS, Cluster
from conftest import simulated_devices
from network import Namespace, why_not
from observability import cpu_seconds

REPORT = Path(__file__).parent.parent / "docs/benchmarks/tls.md"
# The numbers of each input: an image of 224 by 224 pixels, and 64 bytes.
INPUTS = {"image": 3 * 224 * 224, "small": 16}
CONCURRENCY = 8
# A batch takes so few milliseconds that the simulated device is not what limits the requests.
BATCH_MS = 0.05
# TLS for clients, and TLS between gateway and worker.
CASES = {
    "clear text": (False, None),
    "TLS for clients": (True, None),
    "TLS to the worker": (False, "server"),
    "mutual TLS to the worker": (False, "mutual"),
    "both, the latter mutual": (True, "mutual"),
}


@dataclass
class Run:
    """A measurement under load."""

    rps: float
    p50: float
    p99: float
    gateway_ms: float
    worker_ms: float


class Machines:
    """A gateway here, a worker in another network, and their certificates."""

    def __init__(self, folder: Path, namespace: Namespace):
        self.folder, self.namespace = folder, namespace
        self.authority = Authority(folder / "certs")
        # Of both listeners; that for agents is known by the address of all interfaces, and by that on the side of the worker.
        self.gateway = self.authority.issue("gateway", "127.0.0.1", "0.0.0.0", namespace.here)
        self.worker = self.authority.issue("node1", namespace.address)
        self.secret, self.token = folder / "secret", folder / "token"
        self.secret.write_text("0123456789abcdef0123456789abcdef")
        self.token.write_text("an-admin-token-of-a-test-0123456")

    def link(self, mode: str | None, pair: tuple[Path, Path]) -> list[str]:
        flags = ["--link-secret-file", str(self.secret)]
        if mode:
            flags += ["--link-tls", mode, "--link-cert", str(pair[0]), "--link-key", str(pair[1]), "--link-ca", str(self.authority.ca)]
        return flags

    def measure(self, folder: Path, secure: bool, mode: str | None, seconds: float) -> dict[str, Run]:
        """A closed loop on each model."""
        folder.mkdir()
        flags = ["--admin-token-file", str(self.token), *self.link(mode, self.gateway)]
        if secure:
            flags += ["--tls-cert", str(self.gateway[0]), "--tls-key", str(self.gateway[1])]
        ca = self.authority.ca if secure else None
        cluster = Cluster(folder, *flags, admin_listen="0.0.0.0:0", ca=ca)
        try:
            devices = simulated_devices(cluster, dict.fromkeys(INPUTS, BATCH_MS), 1)
            cluster.start_agent("node1", *devices, *self.link(mode, self.worker), namespace=self.namespace)
            for name, size in INPUTS.items():
                inputs, outputs = [models.tensor("x", "FP32", [-1, size])], [models.tensor("y", "FP32", [-1, 4])]
                cluster.admin.register(models.registration(name, inputs, outputs, rate_rps=100), name.encode())
            for name in INPUTS:
                cluster.admin.wait_for_state(name, "ready")
            return {name: self.load(cluster, name, secure, seconds) for name in INPUTS}
        finally:
            cluster.close()

    def load(self, cluster: Cluster, name: str, secure: bool, seconds: float) -> Run:
        (worker,) = cluster.worker_pids(name)
        before = [cpu_seconds(pid) for pid in (cluster.gateway.pid, worker)]
        url = f"{'https' if secure else 'http'}://{cluster.inference}"
        bench = [str(PROGRAMS / "packhorse"), "bench", name, "--url", url, "--json", "--slo", "1000", "--warm-up", "0"]
        bench += ["--concurrency", str(CONCURRENCY), "--duration", str(seconds)]
        if secure:
            bench += ["--ca-file", str(self.authority.ca)]
        done = subprocess.run(bench, capture_output=True, text=True, check=True)
        cpu = [cpu_seconds(pid) - used for pid, used in zip((cluster.gateway.pid, worker), before, strict=True)]
        report = json.loads(done.stdout)
        answered = report["requests"]["answered"]
        return Run(answered / seconds, report["latency_ms"]["p50"], report["latency_ms"]["p99"], *(part / answered * 1e3 for part in cpu))


def table(runs: dict[str, list[Run]]) -> str:
    medians = {
        name: Run(*(statistics.median(getattr(run, field.name) for run in several) for field in fields(Run)))
        for name, several in runs.items()
    }
    clear = medians["clear text"].rps
    rows = [
        f"| {name} | {run.rps:,.0f} | {run.rps / clear:.2f} | {run.p50:.2f} | {run.p99:.2f} | {run.gateway_ms:.3f} | {run.worker_ms:.3f} |"
        for name, run in medians.items()
    ]
    head = "| | requests/s | ratio | p50, ms | p99, ms | gateway, ms | worker, ms |\n|---|--:|--:|--:|--:|--:|--:|"
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="time of each load")
    parser.add_argument("--rounds", type=int, default=3, help="number of loads of each case, of which the median counts")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"the worker needs a network of its own: {reason}")
    found: dict[str, dict[str, list[Run]]] = {name: {case: [] for case in CASES} for name in INPUTS}
    namespace = Namespace(78)
    try:
        with tempfile.TemporaryDirectory() as folder:
            machines = Machines(Path(folder), namespace)
            for number in range(given.rounds):
                for case, (secure, mode) in CASES.items():
                    runs = machines.measure(Path(folder) / f"{number}-{case}".replace(" ", ""), secure, mode, given.seconds)
                    for name, run in runs.items():
                        found[name][case].append(run)
                        print(name, case, run, flush=True)
    finally:
        namespace.close()
    if given.write:
        REPORT.write_text(f"""# The cost of TLS

Made by `cargo xtask bench tls` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

`packhorse-lab bench` as a closed loop of {CONCURRENCY} clients over kept connections, for {given.seconds:g} s each; medians of {given.rounds} rounds, the cases in turn. The worker is in a network namespace of its own, over a pair of
virtual interfaces, and its simulated device takes {BATCH_MS} ms for a batch. Client, gateway and worker share the cores, so that the client's own share of TLS counts, too.
The last columns are processor time per request. The cipher is what rustls prefers on this machine, in user space; TLS of the kernel was not tried.

## {4 * INPUTS["image"]:,} bytes

{table(found["image"])}

## {4 * INPUTS["small"]} bytes

{table(found["small"])}
""")


if __name__ == "__main__":
    main()
