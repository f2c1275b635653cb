"""Measures goodput and the time of refusals over the offered load; writes docs/benchmarks/overload.md with a figure.

    cargo xtask bench overload
"""

import argparse
import asyncio
import math
import multiprocessing
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import models
from cluster import BUILD, Cluster
from conftest import simulated_devices
from hostile import IMAGE, SMALL, json_head, post, tuple_address

REPORT = Path(__file__).parent.parent / "docs/benchmarks/overload.md"
LOADS = (0.5, 0.8, 1, 1.5, 2, 3, 5, 7, 10)
# The device computes batches of 8 rows.
ROWS = 8
MIDDLE = 16_384  # numbers of FP32: 64 KB


@dataclass
class Kind:
    """A kind of request: its model, the time of a batch, the SLO, and its bytes."""

    name: str
    model: str
    batch_ms: float
    slo_ms: int
    columns: int
    colour: str

    @property
    def capacity(self) -> float:
        return ROWS / self.batch_ms * 1e3

    def request(self) -> bytes:
        if self.columns == 4:
            return post(self.model, SMALL)
        head = json_head(1, self.columns)
        return post(self.model, head + bytes(4 * self.columns), f"inference-header-content-length: {len(head)}\r\n")


KINDS = (
    Kind("tiny JSON", "tiny", 50, 400, 4, "#1f77b4"),
    Kind("64 KB", "middle", 50, 400, MIDDLE, "#2ca02c"),
    Kind("0.6 MB", "image", 200, 1000, IMAGE, "#d62728"),
)


@dataclass
class Point:
    """What was measured at one load."""

    load: float
    in_time: float
    answered: float
    refused: float
    other: float
    refusal_p50_ms: float | None
    refusal_p99_ms: float | None
    answer_p99_ms: float | None


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


def measure(folder: Path, seconds: float) -> dict[str, list[Point]]:
    """All loads of all kinds of request. Each kind has a cluster of one device, so that no plan can give its model more."""
    return {kind.name: measure_kind(folder / kind.model, kind, seconds) for kind in KINDS}


def measure_kind(folder: Path, kind: Kind, seconds: float) -> list[Point]:
    folder.mkdir()
    cluster = Cluster(folder, "--policy", "exclusive")
    points = []
    try:
        cluster.start_agent("node1", *simulated_devices(cluster, {kind.model: kind.batch_ms}))
        inputs = [models.tensor("x", "FP32", [-1, kind.columns])], [models.tensor("y", "FP32", [-1, 2])]
        registration = models.registration(kind.model, *inputs, rate_rps=10, slo_ms=kind.slo_ms)
        cluster.admin.register(registration, kind.model.encode())
        cluster.admin.wait_for_state(kind.model, "ready")
        for load in LOADS:
            done = in_processes(2, tuple_address(cluster.inference), kind.request(), load * kind.capacity, seconds)
            points.append(point(kind, load, done, seconds))
            print(kind.name, points[-1], flush=True)
    finally:
        cluster.close()
    return points


def point(kind: Kind, load: float, done: list[tuple[int | str, float]], seconds: float) -> Point:
    answered = sorted(took for status, took in done if status == 200)
    refused = sorted(took for status, took in done if status == 503)
    at = lambda times, q: times[min(int(q * len(times)), len(times) - 1)] * 1e3 if times else None
    in_time = sum(took <= kind.slo_ms / 1e3 for took in answered)
    other = len(done) - len(answered) - len(refused)
    rates = [count / seconds for count in (in_time, len(answered), len(refused), other)]
    return Point(load, *rates, at(refused, 0.5), at(refused, 0.99), at(answered, 0.99))


def figure(found: dict[str, list[Point]]) -> str:
    """Goodput over capacity, and the time of refusals, over the offered load."""
    width, height, left, top, gap = 330, 240, 60, 30, 90
    x = lambda load, panel: left + panel * (width + gap) + (math.log10(load) - math.log10(0.5)) / math.log10(20) * width
    goodput_y = lambda value: top + height * (1 - value / 1.2)
    time_y = lambda ms: top + height * (1 - (math.log10(max(ms, 0.3)) - math.log10(0.3)) / (4 - math.log10(0.3)))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + 2 * width + gap + 20} {top + height + 60}" font-family="sans-serif" font-size="12">']
    titles = ("answers within the SLO / capacity", "time of refusals in ms: median, and p99 dashed")
    ticks = [[(f"{v:g}", goodput_y(v)) for v in (0, 0.2, 0.4, 0.6, 0.8, 1, 1.2)], [(f"{v:g}", time_y(v)) for v in (1, 10, 100, 1000, 10000)]]
    for panel in (0, 1):
        begin, end = x(0.5, panel), x(10, panel)
        out.append(f'<text x="{begin}" y="{top - 12}">{titles[panel]}</text>')
        for text, y in ticks[panel]:
            out.append(f'<line x1="{begin}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{begin - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for load in (0.5, 1, 2, 5, 10):
            out.append(f'<text x="{x(load, panel):.1f}" y="{top + height + 18}" text-anchor="middle">{load:g}</text>')
        out.append(f'<text x="{(begin + end) / 2:.1f}" y="{top + height + 38}" text-anchor="middle">offered load / capacity</text>')
    for number, kind in enumerate(KINDS):
        points = found[kind.name]
        line = lambda places, dash: out.append(
            f'<polyline fill="none" stroke="{kind.colour}" stroke-width="2"{dash} points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>'
        )
        line([(x(p.load, 0), goodput_y(min(p.in_time / kind.capacity, 1.2))) for p in points], "")
        line([(x(p.load, 1), time_y(p.refusal_p50_ms)) for p in points if p.refusal_p50_ms is not None], "")
        line([(x(p.load, 1), time_y(p.refusal_p99_ms)) for p in points if p.refusal_p99_ms is not None], ' stroke-dasharray="5 4"')
        out.append(f'<text x="{left + 10}" y="{top + height - 46 + 16 * number}" fill="{kind.colour}">{kind.name}</text>')
    return "\n".join([*out, "</svg>", ""])


def write(found: dict[str, list[Point]], seconds: float) -> None:
    show = lambda value: "—" if value is None else f"{value:.1f}"
    rows = [
        "| requests | offered / capacity | in time/s | in time / capacity | refused/s | other/s | refusals p50 ms | p99 ms | answers p99 ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        for p in found[kind.name]:
            rows.append(
                f"| {kind.name} | {p.load:g} | {p.in_time:.0f} | {p.in_time / kind.capacity:.2f} | {p.refused:.0f} | {p.other:.1f} "
                f"| {show(p.refusal_p50_ms)} | {show(p.refusal_p99_ms)} | {show(p.answer_p99_ms)} |"
            )
    kinds = "; ".join(f"{kind.name}: {kind.capacity:.0f} requests/s, SLO {kind.slo_ms} ms" for kind in KINDS)
    REPORT.with_suffix(".svg").write_text(figure(found))
    REPORT.write_text(f"""# More than there is capacity for

Made by `cargo xtask bench overload` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; {seconds:g} s for each load. Gateway, agent, workers and clients (two Python
processes) share these cores. The load average at the end was {os.getloadavg()[1]:.1f}: what is above the number of cores is also the work of others.

One replica on a simulated device computes batches of {ROWS} ({kinds}). Requests arrive evenly, whatever becomes of the earlier ones, and their bodies are sent
whole, also where the answer comes before. "In time" are answers within the SLO, counted at the clients; "other" is mostly 504: accepted, but the deadline passed
in the queue. The time of a refusal (503) is from the first byte of the request to the last of its answer, with what the client needs to send the body.

![Goodput and the time of refusals over the offered load](overload.svg)

{chr(10).join(rows)}
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="time of each load")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name} and its figure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.seconds)
    if given.write:
        write(found, given.seconds)


if __name__ == "__main__":
    main()
