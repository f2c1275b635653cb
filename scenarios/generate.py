#!/usr/bin/env python3
"""Writes the scenarios with too many models to write by hand: `python3 scenarios/generate.py`. `--check` fails if a file is stale.

zoo/memory-short.toml: a thousand models with the profiles of Clockwork's zoo and the rates of Azure functions, on few GPUs.
zoo/zoo.csv: these profiles with a replica's memory.
scale/thousand.toml: a thousand GPUs and the five models of the simulator's benchmark; thousand-queue.toml: the same with links that queue.
"""

import csv
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
DAY_S = 86_400
KIND = "V100"

# The models of memory-short.toml, and the computation that they ask for in all, in GPUs at the batch size that is cheapest per request.
MODELS = 1_000
LOAD_GPUS = 3.0
BATCH_SIZES = (1, 2, 4, 8, 16)

# The models of thousand.toml and thousand-queue.toml with their rates in requests/s, as in crates/simulator/benches/simulator.rs.
LARGE = (
    ("alexnet", 500_000),
    ("mobilenet_v2", 200_000),
    ("resnet50", 100_000),
    ("densenet121", 100_000),
    ("inception_v3", 100_000),
)


def read(path):
    with (HERE / path).open(newline="") as file:
        return list(csv.DictReader(file))


def zoo():
    return read("../profiles/sources/clockwork-appendix-a.csv")


def zoo_profiles():
    """Returns the profiles. A replica's memory is that of its weights and of the inputs and outputs of a batch."""
    lines = ["model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,"
             "achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct"]
    for row in zoo():
        for rows in BATCH_SIZES:
            row_bytes = 1000 * (float(row["input_kb"]) + float(row["output_kb"]))
            memory = (1e6 * float(row["weights_mb"]) + rows * row_bytes) / MIB
            lines.append(f"{row['model']},{KIND},{rows},,{row[f'exec_b{rows}_ms']},,{memory:.2f},,,")
    return "\n".join(lines) + "\n"


def memory_short():
    models = zoo()
    calls = [int(row["invocations"]) for row in read("azure/functions2019-totals.csv")][:MODELS]
    cost_s = [min(float(model[f"exec_b{rows}_ms"]) / rows for rows in BATCH_SIZES) / 1000 for model in models]
    recorded = sum(count / DAY_S * cost_s[i % len(models)] for i, count in enumerate(calls))
    scale = LOAD_GPUS / recorded
    lines = [
        "# A thousand models of Clockwork's zoo, whose weights need eight GPUs, with the rates of a thousand Azure functions. Written by",
        "# scenarios/generate.py; README.md says from what.",
        'name = "memory-short"',
        'profiles = ["zoo.csv"]',
        "",
        "[[devices]]",
        f'kind = "{KIND}"',
        "count = 4",
        "memory_mib = 16384",
        "host_link_bytes_per_s = 12e9",
    ]
    for i, count in enumerate(calls):
        model = models[i % len(models)]
        lines += [
            "",
            "[[models]]",
            f'name = "{model["model"]}-{i // len(models) + 1:02}"',
            f'profile = "{model["model"]}"',
            f"rate_rps = {count / DAY_S * scale:.4g}",
            "slo_ms = 100",
            f"payload_bytes = {1000 * int(model['input_kb'])}",
            f"weights_mib = {1e6 * float(model['weights_mb']) / MIB:.2f}",
        ]
    return "\n".join(lines) + "\n"


def thousand(queue):
    """Returns a thousand GPUs whose links transmit one batch after the other if `queue`, and otherwise any number together."""
    about = ", with links that queue" if queue else ""
    lines = [
        f"# A thousand GPUs and a million requests/s{about}. Written by scenarios/generate.py.",
        f'name = "thousand{"-queue" if queue else ""}"',
        'profiles = ["../../profiles/v100-thesis.csv"]',
        "",
        "[[devices]]",
        'kind = "V100-SXM2-16GB"',
        "count = 1000",
        "gpus_per_node = 8",
    ]
    for name, rate in LARGE:
        lines += ["", "[[models]]", f'name = "{name}"', f"rate_rps = {rate}", "slo_ms = 200", "payload_bytes = 602112"]
    lines += ["", "[simulation]", "warmup_s = 0.5", "window_s = 0.5"]
    if queue:
        lines.append('links = "queue"')
    return "\n".join(lines) + "\n"


def files():
    """Returns the text of each file by its path in this folder."""
    return {
        "zoo/zoo.csv": zoo_profiles(),
        "zoo/memory-short.toml": memory_short(),
        "scale/thousand.toml": thousand(queue=False),
        "scale/thousand-queue.toml": thousand(queue=True),
    }


def stale():
    """Returns the files that differ from what this script would write."""
    found = []
    for name, text in files().items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            found.append(name)
    return found


def main():
    if sys.argv[1:] == ["--check"]:
        found = stale()
        if found:
            sys.exit(f"stale: {', '.join(found)}: run python3 scenarios/generate.py")
        return
    if sys.argv[1:]:
        sys.exit(f"unknown argument {sys.argv[1]}: expected --check or none")
    for name, text in files().items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
