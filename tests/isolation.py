"""Measures how far attacks on one model reach another, and how refusals behave under overload; writes docs/benchmarks/isolation.md.

    .venv/bin/python tests/isolation.py --write
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median

import cluster as cluster_module
import models
from cluster import Cluster
from conftest import simulated_devices
from hostile import ATTACKS, IMAGE, SMALL, WIDE, MemoryWatch, Victim, attack, json_head, post, sink, tuple_address

REPORT = Path(__file__).parent.parent / "docs/benchmarks/isolation.md"
LATENCY_MS = {"victim": 5.0, "small": 5.0, "image": 20.0, "wide": 5.0}
VICTIM_RPS = 100.0
BUDGET = 256 << 20


def isolation_cluster(folder: Path, *flags: str) -> Cluster:
    """Four models, each on a simulated device of its own."""
    cluster = Cluster(folder, "--policy", "exclusive", "--payload-budget-bytes", str(BUDGET), "--client-timeout-ms", "3000", *flags)
    cluster.start_agent("node1", *simulated_devices(cluster, LATENCY_MS, devices=len(LATENCY_MS)))
    image = [models.tensor("x", "FP32", [-1, IMAGE])], [models.tensor("y", "FP32", [-1, 2])]
    wide = [models.tensor("x", "FP32", [-1, 4])], [models.tensor("y", "UINT8", [-1, WIDE])]
    registrations = [models.simulated("victim"), models.simulated("small")]
    registrations += [models.registration("image", *image, rate_rps=10), models.registration("wide", *wide, rate_rps=10)]
    for registration in registrations:
        cluster.admin.register(registration, f"the file of {registration['name']}".encode())
    for name in LATENCY_MS:
        cluster.admin.wait_for_state(name, "ready")
    return cluster


def measure(cluster: Cluster, work, address, seconds: float) -> tuple[float, float, float, float]:
    """The victim's p50 and p99 in milliseconds, the share of its requests that failed, and the gateway's memory in MiB."""
    victim = Victim(tuple_address(cluster.inference), "victim", VICTIM_RPS)
    with attack(work, address), MemoryWatch(cluster.gateway.pid) as memory:
        time.sleep(1)  # the attack builds up
        with victim:
            time.sleep(seconds)
    failed = sum(status != 200 for status in victim.statuses) / max(len(victim.statuses), 1)
    return victim.quantile_ms(0.5), victim.quantile_ms(0.99), failed, memory.largest / 2**20


def matrix(folder: Path, seconds: float, rounds: int) -> dict[str, dict[str, tuple]]:
    """For every attack, what the victim saw beside it at the sink and at the gateway."""
    cluster = isolation_cluster(folder)
    found = {}
    try:
        with sink() as sink_address:
            beside = {"sink": sink_address, "gateway": tuple_address(cluster.inference)}
            # Once without counting, so that buffers and pools are there.
            measure(cluster, ATTACKS[next(iter(ATTACKS))], beside["gateway"], 1)
            for name, work in ATTACKS.items():
                results = {target: [] for target in beside}
                for _ in range(rounds):
                    for target, address in beside.items():
                        results[target].append(measure(cluster, work, address, seconds))
                found[name] = {target: tuple(median(column) for column in zip(*rows)) for target, rows in results.items()}
                print(name, found[name], flush=True)
    finally:
        cluster.close()
    return found


def table(found: dict[str, dict[str, tuple]]) -> list[str]:
    lines = [
        "| attack | p50 / p99 ms beside the sink | beside the gateway | ratio | failed | memory MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, beside in found.items():
        (p50, p99, _, _), (found50, found99, failed, memory) = beside["sink"], beside["gateway"]
        lines.append(
            f"| {name} | {p50:.1f} / {p99:.1f} | {found50:.1f} / {found99:.1f} | {found50 / p50:.2f} / {found99 / p99:.2f} "
            f"| {failed:.1%} | {memory:.0f} |"
        )
    return lines


def in_processes(count: int, address: tuple[str, int], request: bytes, rate: float, seconds: float) -> list[tuple[int | str, float]]:
    """The same load from several processes: one alone would be the bottleneck."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def run() -> None:
        answers.put(asyncio.run(open_loop(address, request, rate / count, seconds)))

    processes = [context.Process(target=run) for _ in range(count)]
    for process in processes:
        process.start()
    done = [answer for _ in processes for answer in answers.get()]
    for process in processes:
        process.join()
    return done


async def open_loop(address: tuple[str, int], request: bytes, rate: float, seconds: float) -> list[tuple[int | str, float]]:
    """Sends requests at a rate, whatever becomes of them; the status and the time of each."""
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    done: list[tuple[int | str, float]] = []

    async def ask() -> None:
        start = time.perf_counter()
        try:
            reader, writer = idle.pop() if idle else await asyncio.open_connection(*address)
            writer.write(request)
            top = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(int(line[15:]) for line in top.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            done.append((int(top.split()[1]), time.perf_counter() - start))
            if b"connection: close" in top:
                writer.close()
            else:
                await writer.drain()
                idle.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError) as error:
            done.append((type(error).__name__, time.perf_counter() - start))

    begin = time.perf_counter()
    tasks = set()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        task = asyncio.ensure_future(ask())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return done


def overload(folder: Path, seconds: float) -> list[str]:
    """A model of batches of 8 in 50 ms on one device: 160 requests/s."""
    capacity = 160
    cluster = Cluster(folder, "--policy", "exclusive")
    lines = [
        "| requests | offered / capacity | in time/s | refused/s | other/s | refusals p50 ms | p99 ms | answers p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    try:
        cluster.start_agent("node1", *simulated_devices(cluster, {"tiny": 50.0, "image": 50.0}, devices=2))
        image = [models.tensor("x", "FP32", [-1, IMAGE])], [models.tensor("y", "FP32", [-1, 2])]
        cluster.admin.register(models.simulated("tiny", slo_ms=400), b"tiny")
        cluster.admin.register(models.registration("image", *image, rate_rps=10, slo_ms=400), b"image")
        for name in ("tiny", "image"):
            cluster.admin.wait_for_state(name, "ready")
        json_part = json_head(1, IMAGE)
        more = f"inference-header-content-length: {len(json_part)}\r\n"
        requests = {
            "tiny JSON": post("tiny", SMALL),
            "0.6 MB": post("image", json_part + bytes(4 * IMAGE), more),
        }
        for kind, request in requests.items():
            for factor in (0.5, 1, 2, 5, 10):
                done = in_processes(3, tuple_address(cluster.inference), request, factor * capacity, seconds)
                good = [took for status, took in done if status == 200 and took <= 0.4]
                answered = sorted(took for status, took in done if status == 200)
                refused = sorted(took for status, took in done if status == 503)
                other = len(done) - len(answered) - len(refused)
                at = lambda times, q: f"{times[min(int(q * len(times)), len(times) - 1)] * 1e3:.1f}" if times else "—"
                lines.append(
                    f"| {kind} | {factor} | {len(good) / seconds:.0f} | {len(refused) / seconds:.0f} | {other / seconds:.1f} "
                    f"| {at(refused, 0.5)} | {at(refused, 0.99)} | {at(answered, 0.99)} |"
                )
                print(lines[-1], flush=True)
    finally:
        cluster.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="time of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each attack, of which the median counts")
    parser.add_argument("--only", choices=["isolation", "overload"])
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="other programs to measure, for comparison")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        if given.only != "overload":
            parts["isolation"] = table(matrix(made(Path(folder) / "isolation"), given.seconds, given.rounds))
            if given.before:
                now, cluster_module.PROGRAMS = cluster_module.PROGRAMS, given.before.absolute()
                parts["before"] = table(matrix(made(Path(folder) / "before"), given.seconds, given.rounds))
                cluster_module.PROGRAMS = now
        if given.only != "isolation":
            parts["overload"] = overload(made(Path(folder) / "overload"), given.seconds)
    if given.write:
        write(parts, given)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def write(parts: dict[str, list[str]], given: argparse.Namespace) -> None:
    command = f".venv/bin/python tests/isolation.py --seconds {given.seconds:g} --rounds {given.rounds} --write"
    before = ["", "The same of version 0.1.0, before the limits of [limits.md](../limits.md):", "", *parts.get("before", [])]
    text = f"""# Isolation between models, and refusals under overload

Made by `{command}` on {os.cpu_count()} cores, {platform.system()} {platform.release()}. Gateway, agent, workers (simulated devices), victim and attacker share
these cores, and the attackers are Python processes that take what they can get. The load average at the end was {os.getloadavg()[1]:.0f}: what is far above the number of
cores is the work of others, which shows in every p99.

## Attacks on one model beside another

A client of the model `victim` sends {VICTIM_RPS:.0f} small requests/s; its device takes {LATENCY_MS["victim"]:.0f} ms for a batch. Meanwhile another process attacks models
on other devices of the same gateway, or, for comparison, a sink: a process that reads, answers at once and does nothing else. The sink takes processor time from the
victim, too, so that the ratio shows what the gateway adds. The memory is the largest resident memory of the gateway, whose budget for requests is {BUDGET >> 20} MiB.
Medians of {given.rounds} rounds of {given.seconds:.0f} s.

{chr(10).join(parts.get("isolation", []))}
{chr(10).join(before) if given.before else ""}

## More than there is capacity for

One replica with batches of 8 in 50 ms, 160 requests/s, and an SLO of 400 ms. Requests arrive evenly, whatever becomes of the earlier ones. "In time" are answers within
the SLO; "other" is mostly 504: accepted, but the deadline passed in the queue. The time of a refusal (503) is from the first byte of the request to the last of its
answer, on the clients: three Python processes on the same cores, which at 1,600 requests/s of 0.6 MB move 1 GB/s.

{chr(10).join(parts.get("overload", []))}

Where the rows of 0.6 MB fall off, receiving is what there is too little of, and not the device: all bodies share the processor and arrive after their deadline, so that
nobody waits in the queue and nobody is refused by the head. Requests that are being received do not count in the expected wait yet.
"""
    REPORT.write_text(text)


if __name__ == "__main__":
    main()
