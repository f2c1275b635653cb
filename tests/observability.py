"""Measures the size and time of a scrape at a thousand models, and the cost of traces; writes docs/benchmarks/observability.md.

    cargo xtask bench observability
"""

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import models
from cluster import BUILD, PROGRAMS, Cluster, cpu_seconds, wait_until
from conftest import simulated_devices
from http_admin import request
from load import REQUEST
from otlp import Receiver

REPORT = Path(__file__).parent.parent / "docs/benchmarks/observability.md"
# Each device has the memory for 32 replicas, and every replica is a process.
DEVICES = 1
SCRAPES = 20
TRACED = {"off": None, "1 %": "0.01", "10 %": "0.1", "100 %": "1"}

SCENARIO = """
name = "traced"
profiles = ["profiles.csv"]
[[devices]]
kind = "V100-SXM2-16GB"
count = 1
[[models]]
name = "m"
rate_rps = {rate}
slo_ms = 500
[simulation]
warmup_s = 1
window_s = {seconds}
"""


@dataclass
class Scrape:
    """What Prometheus gets."""

    case: str
    active: int
    samples: int
    page: int
    zipped: int
    ms: float


@dataclass
class Run:
    """A measurement under load."""

    goodput: float
    p50: float
    p99: float
    cpu_us: float
    exported: int
    dropped: int


def scrape(cluster: Cluster, case: str, active: int) -> Scrape:
    times = []
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        page = request(cluster.admin_address, "GET", "/metrics").body
        times.append((time.perf_counter() - begin) * 1e3)
    asked = {"accept-encoding": "gzip"}
    zipped = request(cluster.admin_address, "GET", "/metrics", headers=asked)
    assert zipped.headers["content-encoding"] == "gzip"
    # The client has unpacked it: packed again as the gateway does.
    samples = [line for line in page.splitlines() if not line.startswith(b"#")]
    return Scrape(case, active, len(samples), len(page), len(gzip.compress(page, 1)), statistics.median(times))


def scrapes(folder: Path, count: int, active: int) -> list[Scrape]:
    """Scrapes of a gateway that serves some of its models: before their first request, and afterwards."""
    names = [f"model-{number}" for number in range(count)]
    cluster = Cluster(folder)

    def ready() -> list[str]:
        return [model["name"] for model in cluster.admin.get("/v1/models") if model["state"] == "ready"]

    def after_requests(buckets: str) -> Scrape:
        wait_until(lambda: len(ready()) >= active, f"{active} models to be served", limit=300.0)
        served = ready()[:active]
        with ThreadPoolExecutor(8) as pool:
            send = lambda name: request(cluster.inference, "POST", f"/v2/models/{name}/infer", REQUEST).status  # noqa: E731
            answers = list(pool.map(send, served * 3))
        assert answers.count(200) > 2 * active, answers
        return scrape(cluster, f"`--metrics-buckets {buckets}`", active)

    try:
        for number, name in enumerate(names):
            rate = 5 if number < active else 0.001
            cluster.admin.register(models.simulated(name, rate_rps=rate), b"the file of every model")
        # The profiles are imported, so that none is measured.
        flags = simulated_devices(cluster, dict.fromkeys(names, 5.0), DEVICES)
        profiles = (cluster.folder / "profiles.csv").read_bytes()
        assert cluster.admin.call("PUT", "/v1/profiles", profiles).status == 200
        cluster.start_agent("node1", *flags)
        wait_until(lambda: len(ready()) >= active, f"{active} models to be served", limit=300.0)
        found = [scrape(cluster, "no request yet", 0), after_requests("coarse")]
        cluster.gateway.stop()
        cluster.gateway_flags = ("--metrics-buckets", "fine")
        cluster.start_gateway()
        return [*found, after_requests("fine")]
    finally:
        cluster.close()


def traced(folder: Path, sample: str | None, rate: float, seconds: float) -> Run:
    """A load with this part of its requests traced."""
    folder.mkdir()
    with Receiver() as receiver:
        flags = ["--otlp-endpoint", receiver.url, "--trace-sample", sample] if sample else []
        cluster = Cluster(folder, *flags)
        try:
            cluster.start_agent("node1", *simulated_devices(cluster, {"m": 2}, 1))
            cluster.admin.register(models.simulated("m", rate_rps=rate), b"m")
            cluster.admin.wait_for_state("m", "ready")
            scenario = folder / "traced.toml"
            scenario.write_text(SCENARIO.format(rate=rate, seconds=seconds))
            before = cpu_seconds(cluster.gateway.pid)
            bench = [str(PROGRAMS / "packhorse"), "bench", "--scenario", str(scenario), "--json"]
            done = subprocess.run([*bench, "--url", f"http://{cluster.inference}"], capture_output=True, text=True, check=True)
            cpu = cpu_seconds(cluster.gateway.pid) - before
            report = json.loads(done.stdout)
            (model,) = report["models"]
            metric = cluster.admin.metric
            return Run(
                goodput=model["goodput_rps"],
                p50=model["latency_ms"]["p50"],
                p99=model["latency_ms"]["p99"],
                cpu_us=cpu / report["client"]["sent"] * 1e6,
                exported=int(metric("packhorse_traces_exported_total")),
                dropped=int(metric("packhorse_traces_dropped_total")),
            )
        finally:
            cluster.close()


def write(pages: list[Scrape], count: int, runs: dict[str, list[Run]], rate: float, seconds: float) -> None:
    scraped = [
        f"| {page.active} | {page.case} | {page.samples:,} | {page.page / 1e3:,.0f} | {page.zipped / 1e3:,.0f} | {page.ms:.1f} |"
        for page in pages
    ]
    medians = []
    for name, several in runs.items():
        if not several:
            continue
        middle = {field: statistics.median(getattr(run, field) for run in several) for field in Run.__dataclass_fields__}
        medians.append(
            f"| {name} | {middle['goodput']:,.0f} | {middle['p50']:.2f} | {middle['p99']:.2f} | {middle['cpu_us']:.0f} "
            f"| {middle['exported']:,.0f} | {middle['dropped']:,.0f} |"
        )
    rounds = len(runs["off"])
    traces = f"""
## Traces

`packhorse-lab bench` sends {rate:,.0f} requests/s for {seconds:g} s to a model on a simulated device, beside a receiver in Python on the same cores; medians of {rounds} runs, the cases in turn.
The CPU time is that of the gateway per request, its start included.

| traced | goodput, requests/s | p50, ms | p99, ms | CPU, µs | traces exported | dropped |
|---|--:|--:|--:|--:|--:|--:|
{chr(10).join(medians)}
"""
    REPORT.write_text(f"""# The cost of watching

Made by `cargo xtask bench observability` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

## A scrape

`/metrics` of a gateway with {count:,} registered models, of which some have had requests. kB are thousands of bytes; the time is the median of {SCRAPES} scrapes without
compression, over loopback.

| models with requests | | samples | kB | kB gzip | ms |
|--:|---|--:|--:|--:|--:|
{chr(10).join(scraped)}
{traces if rounds else ""}""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000, help="number of models")
    parser.add_argument("--active", type=int, default=30, help="number of models with requests")
    parser.add_argument("--rate", type=float, default=500, help="requests per second of the traced load")
    parser.add_argument("--seconds", type=float, default=5, help="time of each traced load")
    parser.add_argument("--rounds", type=int, default=3, help="number of traced loads of each case; 0 for none")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = scrapes(Path(folder), given.models, given.active)
        runs = {name: [] for name in TRACED}
        for number in range(given.rounds):
            for name, sample in TRACED.items():
                run = traced(Path(folder) / f"{name}-{number}".replace(" ", ""), sample, given.rate, given.seconds)
                runs[name].append(run)
                print(name, run, flush=True)
    if given.write:
        write(pages, given.models, runs, given.rate, given.seconds)


if __name__ == "__main__":
    main()
