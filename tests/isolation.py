"""Measures how far attacks on one model reach another, and those of one key another key; writes docs/benchmarks/isolation.md.

    cargo xtask bench isolation
"""

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median

import cluster as cluster_module
import key_isolation
import models
from cluster import BUILD, Cluster
from conftest import simulated_devices
from hostile import ATTACKS, IMAGE, WIDE, MemoryWatch, Victim, attack, sink, tuple_address

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="time of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each attack, of which the median counts")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="other programs to measure, for comparison")
    parser.add_argument("--between", choices=["models", "keys", "both"], default="both", help="what attacks what")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        if given.between != "keys":
            parts["models"] = table(matrix(made(Path(folder) / "models"), given.seconds, given.rounds))
        if given.between != "models":
            found = key_isolation.measure(made(Path(folder) / "keys"), given.seconds, given.rounds)
            parts["keys"] = [*key_isolation.table(found), "", key_isolation.verdict(found)]
            print(*parts["keys"], sep="\n")
        if given.before and given.between == "keys":
            now, cluster_module.PROGRAMS = cluster_module.PROGRAMS, given.before.absolute()
            found = key_isolation.measure(made(Path(folder) / "before"), given.seconds, given.rounds)
            parts["keys before"] = key_isolation.table(found)
            print(*parts["keys before"], sep="\n")
            cluster_module.PROGRAMS = now
        elif given.before:
            now, cluster_module.PROGRAMS = cluster_module.PROGRAMS, given.before.absolute()
            parts["before"] = table(matrix(made(Path(folder) / "before"), given.seconds, given.rounds))
            cluster_module.PROGRAMS = now
    if given.write:
        write(parts, given)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def write(parts: dict[str, list[str]], given: argparse.Namespace) -> None:
    """Writes the page. What was not measured now stays as it is there."""
    _, *kept = REPORT.read_text().split("\n## ")
    kept = {section.split("\n")[0]: f"## {section.rstrip()}" for section in kept}
    models, keys = "Attacks on one model beside another", "Attacks of one key beside another"
    if "models" in parts:
        kept[models] = models_section(models, parts, given, kept[models])
    if "keys" in parts:
        kept[keys] = keys_section(keys, parts, given, kept.get(keys, ""))
    REPORT.write_text(f"# Isolation between models and between keys\n\n{kept[models]}\n\n{kept[keys]}\n")


def made_by(given: argparse.Namespace, between: str) -> str:
    command = f"cargo xtask bench isolation --between {between} --seconds {given.seconds:g} --rounds {given.rounds}"
    return f"""Made by `{command}` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build.
Gateway, agent, workers (simulated devices), clients and attackers share these cores, and the attackers are Python processes that take what they can get.
The load average at the end was {os.getloadavg()[1]:.0f}: what is far above the number of cores is the work of others, which shows in every p99."""


def models_section(title: str, parts: dict[str, list[str]], given: argparse.Namespace, former: str) -> str:
    _, mark, kept = former.partition("The same of version 0.1.0")
    # What was measured of the earlier version stays until it is measured again.
    before = mark + kept.rstrip()
    if given.before:
        rows = "\n".join(parts["before"])
        before = f"The same of version 0.1.0, before the limits of [limits.md](../limits.md):\n\n{rows}"
    return f"""## {title}

{made_by(given, "models")}

A client of the model `victim` sends {VICTIM_RPS:.0f} small requests/s; its device takes {LATENCY_MS["victim"]:.0f} ms for a batch. Meanwhile another process attacks models
on other devices of the same gateway, or, for comparison, a sink: a process that reads, answers at once and does nothing else. The sink takes processor time from the
victim, too, so that the ratio shows what the gateway adds. The memory is the largest resident memory of the gateway, whose budget for requests is {BUDGET >> 20} MiB.
Medians of {given.rounds} rounds of {given.seconds:.0f} s.

{chr(10).join(parts["models"])}

{before}"""


def keys_section(title: str, parts: dict[str, list[str]], given: argparse.Namespace, former: str) -> str:
    kit = key_isolation
    _, mark, kept = former.partition("The same before")
    before = mark + kept.rstrip()
    if "keys before" in parts:
        rows = "\n".join(parts["keys before"])
        before = f"The same before keys had shares of anything but the queue ([fault 51](../faults.md)):\n\n{rows}"
    return f"""## {title}

{made_by(given, "keys")}

A greedy and a quiet key send to the same model, whose device takes {kit.BATCH_MS:.0f} ms for a batch of 8; its SLO is {kit.SLO_MS} ms.
The quiet one has {kit.QUIET_CLIENTS} clients that send {kit.QUIET_RPS:.0f} requests/s each, or 2.5/s of 100 KB: alone, while the greedy one attacks a sink, and while it attacks the gateway, in turn.
The ratio to the sink is what the gateway adds to the processor time that any attacker takes on the same cores, although attackers have a niceness of 10.
Refused is every answer to the quiet key that is not 200, and every connection that was closed on it.
The gateway has {kit.BUDGET >> 20} MiB for requests and {kit.CONNECTIONS} connections; the memory is its largest resident memory in the attack.
Only the attack on in-flight requests is on another model, with answers of {kit.WIDE / 1e6:.0f} MB.
Medians of {given.rounds} rounds of {given.seconds:g} s.

{chr(10).join(parts["keys"])}

{before}""".rstrip()


if __name__ == "__main__":
    main()
