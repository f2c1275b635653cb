"""Lets a cluster of simulated GPUs live and break under load, and compares it with a simulation of the same.

Real gateway, agents, workers and sockets: four nodes with four GPUs each serve models of the thesis at 60 % of what fits. A model comes,
another goes, a rate doubles, a node is drained, and a worker, an agent and the gateway are killed. Writes
docs/experiments/living-cluster.md with its figure, the requests of each second, and the scenario of the simulation.

    cargo build --release -p packhorse-gateway -p packhorse-cli -p packhorse-lab -p packhorse-worker-agent
    PACKHORSE_TEST_PROGRAMS=target/release .venv/bin/python examples/living_cluster.py
"""

import argparse
import csv
import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import figures  # noqa: E402
from cluster import BUILD, PROGRAMS, Cluster, wait_until  # noqa: E402
from http_admin import request  # noqa: E402

REPORT = ROOT / "docs/experiments/living-cluster.md"
KIND = "V100-SXM2-16GB"
NODES, GPUS = 4, 4
MODELS = ["alexnet", "bert", "densenet121", "efficientnet_b7", "inception_v3", "mobilenet_v2", "resnext50_32x4d", "vgg19"]
ADDED, REMOVED, DOUBLED, DRAINED, RESTARTED = "resnet50", "mobilenet_v2", "inception_v3", 3, 0
# Batches and SLOs take ten times as long as on the GPUs that were measured: two cores drive all of it.
SCALE = 10
SLO_MS = 200 * SCALE
PAYLOAD_BYTES = 4096
LOAD, MAX_RPS = 0.6, 1200
SEED = 1
# The second of each event, and of the end.
AT = {"added": 20, "removed": 45, "doubled": 65, "drained": 95, "opened": 130, "worker": 155, "agent": 175, "gateway": 190}
END = 215
AGENT_AWAY_S = 3
KILLS = ("worker", "agent", "gateway")
# The time after a kill that belongs to it in the comparison.
AFTER_KILL_S = 10
WINDOW_S = 5
TEXTS = {
    "added": f"`{ADDED}` registered",
    "removed": f"`{REMOVED}` removed",
    "doubled": f"rate of `{DOUBLED}` doubles, unannounced",
    "drained": f"node {DRAINED} drained",
    "opened": f"node {DRAINED} opened",
    "worker": "worker killed",
    "agent": f"agent of node {RESTARTED} killed",
    "gateway": "gateway killed",
}


def packhorse(*arguments: str) -> dict:
    """What the command prints as JSON."""
    done = subprocess.run([PROGRAMS / "packhorse", *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"packhorse {' '.join(arguments)}: {done.stderr}")
    return json.loads(done.stdout)


def scaled_profiles(file: Path) -> None:
    """Writes the thesis' profiles with latencies multiplied by SCALE."""
    with (ROOT / "profiles/v100-thesis.csv").open() as source, file.open("w") as target:
        rows = csv.DictReader(source)
        writer = csv.DictWriter(target, rows.fieldnames)
        writer.writeheader()
        for row in rows:
            for column in ("latency_ms", "latency_p99_ms"):
                row[column] = row[column] and float(row[column]) * SCALE
            writer.writerow(row)


def scenario(models: list[str], rate: float, *, simulation: str = "", steps: dict[str, list] | None = None, load_ms: float = 0) -> str:
    text = f'name = "living-cluster"\nprofiles = ["profiles.csv"]\n\n[[devices]]\nkind = "{KIND}"\ncount = {NODES * GPUS}\ngpus_per_node = {GPUS}\n'
    for model in models:
        text += f'\n[[models]]\nname = "{model}"\nrate_rps = {rate:g}\nslo_ms = {SLO_MS}\npayload_bytes = {PAYLOAD_BYTES}\nload_ms = {load_ms:.0f}\n'
        if steps and model in steps:
            text += f"rate_steps = {steps[model]}\n"
    return f"{text}\n[simulation]\nwarmup_s = 0\nwindow_s = {END}\n{simulation}"


def rate_at_load(folder: Path) -> float:
    """The rate of each model at which the devices have LOAD of the load that a plan for them carries."""
    file = folder / "capacity.toml"

    def fits(rate: float) -> bool:
        file.write_text(scenario([*MODELS, ADDED], rate))
        plan = packhorse("plan", "--scenario", str(file))
        return plan["predicted_goodput_rps"] >= 0.995 * rate * (len(MODELS) + 1)

    low, high = 1.0, 512.0
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    # The doubled rate counts, too.
    return min(LOAD * low, MAX_RPS / (len(MODELS) + 2))


@dataclass
class Live:
    """What was seen of the real cluster."""

    counts: dict[int, list[int]]
    plan: dict
    events: list[dict]
    acts: dict[str, float] = field(default_factory=dict)
    acts_unix_ms: dict[str, int] = field(default_factory=dict)
    load_ms: float = 0.0
    worker_away_s: float = 0.0
    worker_device: int = 0
    gateway_away_s: float = 0.0
    cpu: float = 0.0
    sent: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    sent_late: int = 0


def read_timeline(file: Path, begin: int, counts: dict[int, list[int]]) -> None:
    """Adds the rows of a timeline, whose second 0 is `begin`: offered, within the SLO, late, dropped, lost."""
    with file.open() as source:
        for row in csv.DictReader(source):
            numbers = [int(row[name]) for name in ("offered", "within_slo", "late", "dropped", "lost")]
            second = int(row["t_s"]) + begin
            counts[second] = [old + new for old, new in zip(counts[second], numbers, strict=True)]


def new_counts() -> dict[int, list[int]]:
    return defaultdict(lambda: [0] * 5)


def busy_s() -> tuple[float, float]:
    """The seconds of all cores that were busy, and all, since the start of the machine."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), sum(ticks) / os.sysconf("SC_CLK_TCK")


def stored_events(cluster: Cluster) -> list[dict]:
    """All stored events, oldest first."""
    connection = http.client.HTTPConnection(cluster.admin_address, timeout=10)
    connection.request("GET", "/v1/events?since=0", headers={"authorization": f"Bearer {cluster.admin.token}"})
    stream = connection.getresponse()
    found, name = [], ""
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
            if name == "goodput":
                # It comes every second, behind what is stored.
                connection.close()
                return found
        elif line.startswith("data: "):
            found.append({"kind": name, **json.loads(line.removeprefix("data: "))})


class Experiment:
    """The real cluster with its clients."""

    def __init__(self, folder: Path, rate: float):
        self.folder, self.rate = folder, rate
        self.cluster = Cluster(folder)
        self.flags = ["--devices", f"simulated:{KIND}:{GPUS}", "--profiles", str(folder / "profiles.csv")]
        self.benches: list[subprocess.Popen] = []

    def start(self) -> None:
        for node in range(NODES):
            self.cluster.start_agent(f"node-{node}", *self.flags)
        for model in MODELS:
            self.register(model)
        for model in MODELS:
            self.cluster.admin.wait_for_state(model, "ready")

    def register(self, model: str) -> None:
        def tensor(name: str, size: int) -> list[dict]:
            return [{"name": name, "datatype": "FP32", "shape": [-1, size]}]

        registration = {"name": model, "version": 1, "max_batch_size": 32, "slo_ms": SLO_MS, "rate_rps": self.rate}
        registration |= {"inputs": tensor("x", PAYLOAD_BYTES // 4), "outputs": tensor("y", 1)}
        self.cluster.admin.register(registration, b"A simulated device reads no model.")

    def command(self, *arguments: str) -> list[str]:
        cluster = self.cluster
        access = ["--url", f"http://{cluster.inference}", "--admin-url", f"http://{cluster.admin_address}"]
        return [*arguments, *access, "--token-file", str(cluster.state / "admin-token")]

    def bench(self, name: str, text: str) -> None:
        """Starts clients that send the load of a scenario."""
        file = self.folder / f"{name}.toml"
        file.write_text(text)
        flags = ["--scenario", str(file), "--seed", str(SEED), "--retry", "--concurrency", "8192"]
        flags += ["--timeline", str(self.folder / f"{name}.csv"), "--json"]
        output = (self.folder / f"{name}.json").open("w")
        command = [str(PROGRAMS / "packhorse"), *self.command("bench", *flags)]
        self.benches.append(subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL))

    def settled_plan(self) -> dict:
        """The plan once it has not changed for ten seconds."""
        generation, since = None, 0.0

        def is_settled() -> bool:
            nonlocal generation, since
            now = self.cluster.admin.get("/v1/plan")["generation"]
            if now != generation:
                generation, since = now, time.monotonic()
            return time.monotonic() - since > 10

        wait_until(is_settled, "the plan to settle", limit=120)
        return packhorse(*self.command("plan"))

    def run(self) -> Live:
        self.start()
        live = Live(counts=new_counts(), plan=self.settled_plan(), events=[])
        steps = {DOUBLED: [[AT["doubled"], 2 * self.rate]], REMOVED: [[AT["removed"], 0]]}
        busy, total = busy_s()
        begin = time.monotonic()
        self.bench("clients", scenario(MODELS, self.rate, steps=steps))

        def act(name: str) -> None:
            time.sleep(max(0.0, begin + AT[name] - time.monotonic()))
            live.acts[name], live.acts_unix_ms[name] = time.monotonic() - begin, time.time_ns() // 1_000_000
            print(f"{live.acts[name]:7.2f} s  {TEXTS[name]}", flush=True)

        admin = self.cluster.admin
        act("added")
        self.register(ADDED)
        admin.wait_for_state(ADDED, "ready")
        added_at = time.monotonic() - begin
        self.bench("added", scenario([ADDED], self.rate).replace(f"window_s = {END}", f"window_s = {END - added_at:.0f}"))
        act("removed")
        time.sleep(SLO_MS / 1e3)
        assert admin.call("DELETE", f"/v1/models/{REMOVED}").status == 200
        act("doubled")
        act("drained")
        assert admin.call("POST", f"/v1/nodes/node-{DRAINED}/drain").status < 300
        act("opened")
        assert admin.call("POST", f"/v1/nodes/node-{DRAINED}/uncordon").status < 300
        act("worker")
        live.worker_device, live.worker_away_s = self.kill_worker()
        act("agent")
        agent = self.cluster.agents[f"node-{RESTARTED}"]
        agent.kill()
        time.sleep(AGENT_AWAY_S)
        self.cluster.start_agent(f"node-{RESTARTED}", *self.flags)
        act("gateway")
        killed = time.monotonic()
        self.cluster.gateway.kill()
        self.cluster.start_gateway()
        wait_until(lambda: request(self.cluster.inference, "GET", "/v2/health/ready").status == 200, "the gateway to be ready")
        live.gateway_away_s = time.monotonic() - killed
        for bench in self.benches:
            assert bench.wait(120) == 0
        busy_end, total_end = busy_s()
        live.cpu = (busy_end - busy) / (total_end - total)
        read_timeline(self.folder / "clients.csv", 0, live.counts)
        read_timeline(self.folder / "added.csv", round(added_at), live.counts)
        for name in ("clients", "added"):
            client = json.loads((self.folder / f"{name}.json").read_text())["client"]
            live.sent += client["sent"]
            live.sent_late += client["sent_late"]
            for error, count in client["failures"].items():
                live.failures[error] = live.failures.get(error, 0) + count
        live.events = stored_events(self.cluster)
        live.load_ms = load_ms(live.events)
        return live

    def kill_worker(self) -> tuple[int, float]:
        """Kills the only worker of a device; the device's index and the time until the worker serves again."""
        admin = self.cluster.admin
        devices = [device["id"] for node in admin.get("/v1/nodes") for device in node["devices"]]
        replicas = [(model["name"], replica) for model in admin.get("/v1/models") for replica in model["replicas"]]
        used = [replica["device"] for _, replica in replicas]
        model, killed = next((model, replica) for model, replica in replicas if used.count(replica["device"]) == 1)

        def is_back() -> bool:
            view = admin.get(f"/v1/models/{model}")
            (now,) = [replica for replica in view["replicas"] if replica["id"] == killed["id"]]
            return now["pid"] not in (None, killed["pid"]) and now["serving"]

        begin = time.monotonic()
        os.kill(killed["pid"], signal.SIGKILL)
        wait_until(is_back, "the worker to be back")
        return devices.index(killed["device"]), time.monotonic() - begin


def load_ms(events: list[dict]) -> float:
    """The median time from a replica's plan to its service."""
    begun: dict[str, int] = {}
    times = []
    for event in events:
        if event["kind"] != "replica":
            continue
        name = json.dumps(event["subject"])
        begun.setdefault(name, event["at_ms"])
        if event["state"] == "serving" and begun[name] >= 0:
            times.append(event["at_ms"] - begun[name])
            begun[name] = -1
    return statistics.median(times)


@dataclass
class Simulated:
    """What the simulation says of the same."""

    counts: dict[int, list[int]]
    report: dict


def simulate(folder: Path, rate: float, live: Live) -> Simulated:
    """Simulates the same requests, from the plan that the cluster had, with what was done to it and how long its processes were away."""
    acts = live.acts
    faults = [
        {"at_s": acts["added"], "kind": "model-added", "model": ADDED},
        {"at_s": acts["removed"], "kind": "model-removed", "model": REMOVED},
        {"at_s": acts["drained"], "kind": "node-drained", "node": DRAINED, "for_s": acts["opened"] - acts["drained"]},
        {"at_s": acts["worker"], "kind": "worker-dies", "device": live.worker_device, "for_s": live.worker_away_s},
        {"at_s": acts["agent"], "kind": "agent-dies", "node": RESTARTED, "for_s": AGENT_AWAY_S},
        {"at_s": acts["gateway"], "kind": "gateway-dies", "for_s": live.gateway_away_s},
    ]
    lines = ["{ " + ", ".join(f"{key} = {json.dumps(round(value, 3) if isinstance(value, float) else value)}" for key, value in fault.items()) + " }" for fault in faults]
    text = scenario(
        [*MODELS, ADDED],
        rate,
        simulation="faults = [\n    " + ",\n    ".join(lines) + ",\n]\n",
        steps={DOUBLED: [[AT["doubled"], 2 * rate]]},
        load_ms=live.load_ms,
    )
    file, plan = folder / "simulated.toml", folder / "plan.json"
    file.write_text(text)
    plan.write_text(json.dumps(live.plan))
    flags = ["--scenario", str(file), "--plan", str(plan), "--replan", "--seed", str(SEED)]
    report = packhorse("simulate", *flags, "--timeline", str(folder / "simulated.csv"))
    counts = new_counts()
    read_timeline(folder / "simulated.csv", 0, counts)
    return Simulated(counts, report)


def share(counts: dict[int, list[int]], begin: int, end: int) -> float:
    """The percentage of the requests of these seconds that were answered within the SLO."""
    offered, within = (sum(counts[second][i] for second in range(begin, end)) for i in (0, 1))
    return 100 * within / max(offered, 1)


def missed(counts: dict[int, list[int]], begin: int, end: int) -> int:
    return sum(counts[second][0] - counts[second][1] for second in range(begin, end))


def kill_windows(live: Live) -> dict[str, range]:
    """The seconds that belong to each kill: the requests that were due an SLO before it, and those until the cluster is whole."""
    return {name: range(int(live.acts[name]) - SLO_MS // 1000, int(live.acts[name]) + AFTER_KILL_S) for name in KILLS}


def largest_difference(live: Live, simulated: Simulated) -> tuple[float, int]:
    """The largest difference of the two shares in points, over windows without a kill, and the second at which its window begins."""
    killed = {second for seconds in kill_windows(live).values() for second in seconds}
    differences = [
        (abs(share(live.counts, begin, begin + WINDOW_S) - share(simulated.counts, begin, begin + WINDOW_S)), begin)
        for begin in range(1, END - WINDOW_S)
        if not killed & set(range(begin, begin + WINDOW_S))
    ]
    return max(differences)


def after(live: Live, name: str) -> tuple[str, str]:
    """The seconds from an event to the next adopted plan, and to its completion; a dash without a new plan."""
    order = list(AT)
    following = order[order.index(name) + 1 :]
    begin = live.acts_unix_ms[name]
    end = live.acts_unix_ms[following[0]] if following else begin + 1000 * (END - AT[name])
    times = {}
    for event in live.events:
        if event["kind"] == "plan" and begin <= event["at_ms"] < end:
            times.setdefault(event["state"], (event["at_ms"] - begin) / 1000)
    return tuple(f"{times[state]:.1f} s" if state in times else "–" for state in ("adopted", "completed"))


def dip(counts: dict[int, list[int]], name: str) -> tuple[float, int, int]:
    """The share of the worst second after an event, the number of seconds with less than 99 %, and the requests not answered in time."""
    order = [*AT, "end"]
    begin = AT[name] - (SLO_MS // 1000 if name in KILLS else 0)
    end = {**AT, "end": END}[order[order.index(name) + 1]]
    end -= SLO_MS // 1000 if order[order.index(name) + 1] in KILLS else 0
    shares = [share(counts, second, second + 1) for second in range(begin, end) if counts[second][0]]
    return min(shares), sum(value < 99 for value in shares), missed(counts, begin, end)


def write_figure(live: Live, simulated: Simulated) -> None:
    marks = [(letter, AT[name], "#d62728" if name in KILLS else "#555") for letter, name in zip("abcdefgh", AT, strict=True)]

    def panel(title: str, counts: dict[int, list[int]]) -> figures.Panel:
        offered, within = ([counts[second][column] for second in range(END)] for column in (0, 1))
        lines = [figures.Line(offered, "#999"), figures.Line(within, "#1f77b4", 1.5)]
        largest = max(row[0] for row in counts.values()) * 1.05
        return figures.Panel(f"{title}: requests/s offered (grey) and answered within the SLO (blue)", lines, largest, 200, marks)

    panels = [panel("real cluster", live.counts), panel("simulation", simulated.counts)]
    figures.write(REPORT.with_suffix(".svg"), panels, END, 20)


def write_report(rate: float, live: Live, simulated: Simulated) -> None:
    totals = [sum(row[i] for row in live.counts.values()) for i in range(5)]
    simulated_totals = [sum(row[i] for row in simulated.counts.values()) for i in range(5)]
    difference, second = largest_difference(live, simulated)
    rows = []
    for letter, name in zip("abcdefgh", AT, strict=True):
        worst, length, lost = dip(live.counts, name)
        s_worst, s_length, s_lost = dip(simulated.counts, name)
        adopted, completed = after(live, name)
        rows.append(f"| {letter} | {AT[name]} s | {TEXTS[name]} | {adopted} | {completed} | {worst:.1f} % ({s_worst:.1f}) | {length} s ({s_length}) | {lost} ({s_lost}) |")
    kills = []
    for name, seconds in kill_windows(live).items():
        ours, theirs = (missed(counts, seconds.start, seconds.stop) for counts in (live.counts, simulated.counts))
        kills.append(f"| {TEXTS[name]} | {ours} | {theirs} |")
    failures = "; ".join(f"{count}: {error}" for error, count in live.failures.items()) or "none"
    REPORT.write_text(f"""# A cluster that lives and breaks

Made by `python examples/living_cluster.py` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build. Real gateway, agents, workers and
sockets on simulated GPUs: {NODES} nodes with {GPUS} GPUs each, batches and SLOs {SCALE} times as long as on the {KIND} of the profiles. {len(MODELS) + 1} models of the thesis get
{rate:.0f} requests/s each, {100 * LOAD:.0f} % of what a plan for all of them carries, with {PAYLOAD_BYTES} bytes each and an SLO of {SLO_MS / 1000:g} s; policy `goodput`, discipline `deadline`. Clients send
a request again whose connection fails, until its SLO has passed. The host's CPU was {100 * live.cpu:.0f} % busy, clients included; {live.sent_late} of {live.sent} requests were sent more than
10 ms late.

The simulation (`packhorse-lab simulate --replan`) has the same requests, begins with the plan that the cluster had, and is told what is done at which
second, the median time from a replica's plan to its service ({live.load_ms / 1000:.2f} s), and for how long the killed worker ({live.worker_away_s:.2f} s) and the gateway ({live.gateway_away_s:.2f} s) were away.
Its control plane is the gateway's: it decides by itself when to plan.

![Goodput over time, of the real cluster and of the simulation](living-cluster.svg)

| | at | event | new plan | rolled out | worst second | below 99 % | not in time |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

In brackets: the simulation. A second counts the requests that came due in it. A dash stands where no new plan was made before the next event.

| | offered | within the SLO | late | refused or expired | lost |
|---|---|---|---|---|---|
| real cluster | {" | ".join(map(str, totals))} |
| simulation | {" | ".join(map(str, simulated_totals))} |

Failures that clients saw: {failures}.

**Difference of the two curves.** In the {WINDOW_S} s windows without a kill, the shares of requests answered in time differ by at most {difference:.1f} points (from second {second} on).
Requests that were not answered in time around kills, from {SLO_MS / 1000:g} s before to {AFTER_KILL_S} s after:

| | real cluster | simulation |
|---|---|---|
{chr(10).join(kills)}
""")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scaled_profiles(folder / "profiles.csv")
        rate = round(rate_at_load(folder))
        print(f"{len(MODELS) + 1} models with {rate} requests/s each", flush=True)
        experiment = Experiment(folder, rate)
        try:
            live = experiment.run()
        finally:
            for bench in experiment.benches:
                bench.kill()
            experiment.cluster.close()
        simulated = simulate(folder, rate, live)
    write_figure(live, simulated)
    write_report(rate, live, simulated)
    print(f"wrote {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
