"""Lets one API key flood a model that another one uses modestly, and shows what each gets of it.

Real gateway, agent, worker and sockets; the GPU is simulated. Writes docs/experiments/fair-keys.md with its figure.

    cargo build --release -p packhorse-gateway -p packhorse-cli -p packhorse-lab -p packhorse-worker-agent
    PACKHORSE_TEST_PROGRAMS=target/release .venv/bin/python examples/fair_keys.py
"""

import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import figures  # noqa: E402
import models  # noqa: E402
from cluster import BUILD, PROGRAMS, Cluster  # noqa: E402
from conftest import simulated_devices  # noqa: E402

REPORT = ROOT / "docs/experiments/fair-keys.md"
MODEL, ROWS, BATCH_MS, SLO_MS = "tiny", 8, 50, 400
CAPACITY = ROWS / BATCH_MS * 1e3
# What each key asks for in parts of the capacity, and from when to when it sends, in seconds.
KEYS = {"modest": (0.4, 0, 50), "flood": (5.0, 15, 35)}
COLOURS = {"modest": "#1f77b4", "flood": "#d62728"}
END = 50
# Shares are those of the last seconds: the time after which they no longer hold what was before.
SETTLED_S = 3


def scenario(name: str) -> str:
    part, begin, end = KEYS[name]
    return (
        f'name = "{name}"\nprofiles = ["profiles.csv"]\n'
        '[[devices]]\nkind = "V100-SXM2-16GB"\ncount = 1\n'
        f'[[models]]\nname = "{MODEL}"\nrate_rps = {part * CAPACITY}\nslo_ms = {SLO_MS}\npayload_bytes = 16\n'
        f"[simulation]\nwarmup_s = 0\nwindow_s = {end - begin}\n"
    )


def run(folder: Path, fair: bool) -> dict[str, list[list[int]]]:
    """Offered requests and those within the SLO of each key in each second. Without fairness both clients have the same key."""
    folder.mkdir()
    cluster = Cluster(folder, "--policy", "exclusive", "--inference-keys", "required")
    try:
        cluster.start_agent("node1", *simulated_devices(cluster, {MODEL: BATCH_MS}))
        inputs = [models.tensor("x", "FP32", [-1, 4])], [models.tensor("y", "FP32", [-1, 2])]
        cluster.admin.register(models.registration(MODEL, *inputs, rate_rps=10, slo_ms=SLO_MS), b"A simulated device reads no model.")
        cluster.admin.wait_for_state(MODEL, "ready")
        access = ["--admin-url", f"http://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token")]
        for name in KEYS:
            made = subprocess.run([PROGRAMS / "packhorse", "keys", "create", name, "--scope", "infer:*", *access], capture_output=True, check=True)
            (folder / f"{name}.key").write_bytes(made.stdout)
            (folder / f"{name}.toml").write_text(scenario(name))
        start, clients = time.monotonic(), []
        for name, (_, begin, _) in KEYS.items():
            time.sleep(max(0.0, start + begin - time.monotonic()))
            flags = ["--scenario", folder / f"{name}.toml", "--timeline", folder / f"{name}.csv", "--concurrency", "4096"]
            flags += ["--key-file", folder / (f"{name}.key" if fair else "modest.key"), "--url", f"http://{cluster.inference}", *access]
            clients.append(subprocess.Popen([PROGRAMS / "packhorse", "bench", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        for client in clients:
            _, said = client.communicate()
            if client.returncode != 0:
                raise RuntimeError(said.decode())
    finally:
        cluster.close()
    return {name: timeline(folder / f"{name}.csv", KEYS[name][1]) for name in KEYS}


def timeline(file: Path, begin: int) -> list[list[int]]:
    seconds = [[0, 0] for _ in range(END)]
    with file.open() as source:
        for row in csv.DictReader(source):
            second = begin + int(row["t_s"])
            if second < END:
                seconds[second][0] += int(row["offered"])
                seconds[second][1] += int(row["within_slo"])
    return seconds


def rates(seconds: list[list[int]], begin: int, end: int) -> tuple[float, float]:
    """Offered and within the SLO, in requests/s."""
    return tuple(sum(second[column] for second in seconds[begin:end]) / (end - begin) for column in (0, 1))


def write_figure(runs: dict[str, dict[str, list[list[int]]]]) -> None:
    panels = []
    for title, keys in runs.items():
        asked = {name: f"{name}: asks for {part * CAPACITY:.0f}" for name, (part, _, _) in KEYS.items()}
        lines = [figures.Line([second[1] for second in seconds], COLOURS[name], label=asked[name]) for name, seconds in keys.items()]
        panels.append(figures.Panel(f"{title}: requests/s answered within the SLO", lines, CAPACITY * 1.1, 40))
    figures.write(REPORT.with_suffix(".svg"), panels, END, 5)


def write_report(runs: dict[str, dict[str, list[list[int]]]]) -> None:
    _, begin, end = KEYS["flood"]
    rows = []
    for title, keys in runs.items():
        total = sum(rates(seconds, begin + SETTLED_S, end)[1] for seconds in keys.values())
        for name, seconds in keys.items():
            offered, within = rates(seconds, begin + SETTLED_S, end)
            alone = rates(seconds, SETTLED_S, begin)
            before = f"{alone[1]:.0f} of {alone[0]:.0f}" if alone[0] else ""
            rows.append(f"| {title} | `{name}` | {before} | {within:.0f} of {offered:.0f} | {within / offered:.1%} | {total / CAPACITY:.0%} |")
    table = "\n".join(rows)
    REPORT.write_text(f"""# Two keys and one model

    PACKHORSE_TEST_PROGRAMS=target/{PROGRAMS.name} .venv/bin/python examples/fair_keys.py

One model on one simulated GPU computes at most {CAPACITY:.0f} requests/s, in batches of {ROWS} that take {BATCH_MS} ms; its SLO is {SLO_MS} ms. Key `modest` asks for {KEYS["modest"][0]:.0%} of that. From second
{begin} to second {end} key `flood` asks for {KEYS["flood"][0] / 0.5:.0f} times its share, which is half of the model. Gateway, agent, worker, clients and sockets are real. In the second run both clients
send the same key, so that nothing tells them apart.

![Requests answered within the SLO, by key](fair-keys.svg)

Requests/s within the SLO, from {SETTLED_S} s after the flood began to its end:

| run | client | before the flood | in the flood | part of its requests | of the model's capacity, both |
|---|---|---|---|---|---|
{table}

The scheduler puts the requests of a key that has had the most of an overloaded model in the last seconds behind those of the others ([Overload](../operations/overload.md#what-a-key-does-to-others)).

Measured on {os.cpu_count()} cores of {platform.machine()}, {platform.system()}, {BUILD} build, one run.
""")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = {"a key each": run(Path(folder) / "fair", True), "the same key": run(Path(folder) / "same", False)}
    write_figure(runs)
    write_report(runs)
    print(REPORT.read_text())


if __name__ == "__main__":
    main()
