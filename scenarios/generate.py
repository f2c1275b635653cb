#!/usr/bin/env python3
"""Writes the scenarios with too many models to write by hand: `python3 scenarios/generate.py`. `--check` fails if a file is stale.

zoo/memory-short.toml: a thousand models with the profiles of Clockwork's zoo and the rates of Azure functions, on few GPUs.
zoo/zoo.csv: these profiles with a replica's memory.
crowd/thirty.toml, crowd/sixty.toml, crowd/hundred.toml: many models of that zoo on a few GPUs, whose weights all fit.
scale/thousand.toml: a thousand GPUs and the five models of the simulator's benchmark; thousand-queue.toml: the same with links that queue.
azure/ramp.toml: half a day of Azure functions as the load of twelve models, six times as fast as recorded.
azure/ramp-as-recorded.toml: the same as fast as recorded, on devices that take six times as long, of azure/six-times-slower.csv.
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

# The models of crowd/thirty.toml with their SLOs in ms, from the one with most requests to the one with fewest.
THIRTY = (
    ("cifar_wideresnet16_10", 200), ("tsn_resnet101_v1b_kinetics400", 50), ("resnet152_v1b", 50), ("tsn_resnet50_v1b_kinetics400", 50),
    ("cifar_wideresnet40_8", 100), ("se_resnext101_64x4d", 100), ("resnet101_v1c", 200), ("resnet101_v1b", 50),
    ("resnet101_tuned_1.9x", 200), ("winograd_resnet18_v2", 100), ("resnet152_v1d", 200), ("simple_pose_resnet18_v1b", 200),
    ("mobile_pose_resnet50_v1", 100), ("winograd_resnet101_v2", 200), ("resnet101_v1d", 100), ("resnet34_v2", 500),
    ("resnet18_v2", 100), ("tsn_inceptionv3_kinetics400", 200), ("inceptionv3", 50), ("tsn_resnet152_v1b_kinetics400", 500),
    ("resnet34_v1", 50), ("mobile_pose_mobilenetv3", 200), ("googlenet", 500), ("resnet152_v1", 100), ("densenet169", 200),
    ("resnet152_v1s", 200), ("resnet50_v1s", 50), ("resnext50_32x4d", 500), ("mobile_pose_resnet18_v1", 100), ("densenet121", 100),
)
# The rate of the k-th model of a crowd is that of the first one over k to this power, and the computation that all ask for, in GPUs at the batch size that
# is cheapest per request.
CROWD_EXPONENT, CROWD_GPUS = 0.9, 4.4555
# The SLOs in ms of the other crowds, in turn, and the steps by which they go through the zoo.
CROWD_SLOS, CROWD_STEPS = (50, 200, 100, 500, 100), {"sixty": (60, 7), "hundred": (100, 11)}

# The models of thousand.toml and thousand-queue.toml with their rates in requests/s, as in crates/simulator/benches/simulator.rs.
LARGE = (
    ("alexnet", 500_000),
    ("mobilenet_v2", 200_000),
    ("resnet50", 100_000),
    ("densenet121", 100_000),
    ("inception_v3", 100_000),
)

# The twelve models of the ramps with their SLOs in ms and payloads in bytes: one stripe of azure/functions2019-day.csv each, in order.
RAMP_MODELS = (
    *((name, 200, 602_112) for name in (
        "mobilenet_v2", "resnet50", "vgg19", "resnext50_32x4d", "inception_v3", "densenet121", "efficientnet_b7")),
    *((name, 300, 4_096) for name in ("t5", "bert", "gpt2")),
    *((name, 1_500, 4_096) for name in ("xlnet", "bloom_560")),
)
# The devices that the load of a ramp keeps busy in the mean of the day.
RAMP_DEVICES = 2.7
# The minutes of the day at which a ramp begins, and its length.
RAMP_START_MIN, RAMP_MIN = 18 * 60, 12 * 60
# The minutes between two points of a ramp, each of which is the mean of as many minutes around it.
RAMP_STEP_MIN = 30
# How many times as fast as recorded ramp.toml is, and as slow the devices of the other ramp are.
RAMP_SPEED = 6
SLOW_KIND = "V100-six-times-slower"


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
    cost_s = [cheapest_s(model) for model in models]
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


def cheapest_s(model):
    return min(float(model[f"exec_b{rows}_ms"]) / rows for rows in BATCH_SIZES) / 1000


def crowd(name):
    by_name = {model["model"]: model for model in zoo()}
    if name == "thirty":
        chosen = [(by_name[model], slo) for model, slo in THIRTY]
    else:
        count, step = CROWD_STEPS[name]
        models = zoo()
        chosen = []
        for place in range(count):
            model, slo = models[place * step % len(models)], CROWD_SLOS[place % len(CROWD_SLOS)]
            # A request alone takes no more than a quarter of its objective.
            chosen.append((model, max(slo, 200) if 4 * float(model["exec_b1_ms"]) > slo else slo))
    weights = [(place + 1) ** -CROWD_EXPONENT for place in range(len(chosen))]
    scale = CROWD_GPUS / sum(weight * cheapest_s(model) for weight, (model, _) in zip(weights, chosen))
    lines = [
        f"# {len(chosen)} models of Clockwork's zoo on a few GPUs that have memory for all of them. Written by scenarios/generate.py.",
        f'name = "{name}"',
        'profiles = ["../zoo/zoo.csv"]',
        'pool = "auto"',
        "",
        "[[devices]]",
        f'kind = "{KIND}"',
        "count = 6",
        "memory_mib = 16384",
        "host_link_bytes_per_s = 12e9",
    ]
    for place, (weight, (model, slo)) in enumerate(zip(weights, chosen)):
        lines += [
            "",
            "[[models]]",
            f'name = "{model["model"]}-{place + 1:02}"',
            f'profile = "{model["model"]}"',
            f"rate_rps = {weight * scale:.4g}",
            f"slo_ms = {slo}",
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


def thesis_profiles():
    return read("../profiles/v100-thesis.csv")


def slow_profiles():
    """Returns the profiles of the ramps' models on a device that takes longer for everything."""
    rows = [row for row in thesis_profiles() if row["model"] in {name for name, *_ in RAMP_MODELS}]
    for row in rows:
        row["device_kind"] = SLOW_KIND
        row["latency_ms"] = repr(float(row["latency_ms"]) * RAMP_SPEED)
    return "\n".join([",".join(rows[0])] + [",".join(row.values()) for row in rows]) + "\n"


def ramp_rates():
    """Returns of each model the requests/s at the ramp's points, the first of which is at its start. A request of every stripe stands for the
    same time of a device."""
    day = read("azure/functions2019-day.csv")
    stripes = [[int(row[f"stripe_{i}"]) for row in day] for i in range(len(RAMP_MODELS))]
    costs_s = []
    for name, slo_ms, _ in RAMP_MODELS:
        rows = [row for row in thesis_profiles() if row["model"] == name and float(row["latency_ms"]) <= slo_ms / 2]
        costs_s.append(min(float(row["latency_ms"]) / int(row["batch_size"]) for row in rows) / 1000)
    calls_per_s = sum(map(sum, stripes)) / len(day) / 60
    call_s = RAMP_DEVICES / calls_per_s

    def at(stripe, minute):
        around = (stripe[(minute - RAMP_STEP_MIN // 2 + i) % len(stripe)] for i in range(RAMP_STEP_MIN))
        return sum(around) / RAMP_STEP_MIN / 60

    minutes = range(RAMP_START_MIN, RAMP_START_MIN + RAMP_MIN + 1, RAMP_STEP_MIN)
    return [[at(stripe, minute) * call_s / cost for minute in minutes] for stripe, cost in zip(stripes, costs_s)]


def ramp(name, comment, profiles, device, speed, slowness):
    step_s = RAMP_STEP_MIN * 60 // speed
    digits = 1 if slowness == 1 else 2
    lines = [
        *comment,
        f'name = "{name}"',
        f'profiles = ["{profiles}"]',
        "",
        "[[devices]]",
        *device,
        "count = 4",
        "gpus_per_node = 1",
        "",
        "[autoscale]",
        device[0],
        "min = 2",
        "max = 16",
        "start_s = 60",
    ]
    for (model, slo_ms, payload), rates in zip(RAMP_MODELS, ramp_rates()):
        steps = ", ".join(f"[{i * step_s}, {rate / slowness:.{digits}f}, {step_s}]" for i, rate in enumerate(rates[1:]))
        lines += [
            "",
            "[[models]]",
            f'name = "{model}"',
            f"rate_rps = {rates[0] / slowness:.{digits}f}",
            f"slo_ms = {slo_ms * slowness}",
            f"payload_bytes = {payload}",
            "load_ms = 3000",
            f"rate_steps = [{steps}]",
        ]
    lines += ["", "[simulation]", "warmup_s = 0", f"window_s = {RAMP_MIN * 60 // speed}"]
    return "\n".join(lines) + "\n"


def fast_ramp():
    comment = (
        "# Twelve hours of the Azure Functions trace around midnight, in two hours: within ten minutes the load rises to four times its usual, as calls weighted by",
        "# their time on a device (1.6 times in requests/s), stays there for ten more, and falls. For `packhorse-lab simulate --replan`; written by",
        "# scenarios/generate.py, README.md says from what.",
    )
    return ramp("azure-ramp", comment, "../../profiles/v100-thesis.csv", ['kind = "V100-SXM2-16GB"'], RAMP_SPEED, 1)


def ramp_as_recorded():
    comment = (
        "# Twelve hours of the Azure Functions trace around midnight, as fast as recorded, on devices that take six times as long as those of",
        "# ramp.toml, for a sixth of its requests/s with six times its SLOs. Written by scenarios/generate.py, README.md says from what.",
    )
    device = [f'kind = "{SLOW_KIND}"', "memory_mib = 16384", "sm_count = 80"]
    return ramp("azure-ramp-as-recorded", comment, "six-times-slower.csv", device, 1, RAMP_SPEED)


def files():
    """Returns the text of each file by its path in this folder."""
    return {
        "zoo/zoo.csv": zoo_profiles(),
        "zoo/memory-short.toml": memory_short(),
        **{f"crowd/{name}.toml": crowd(name) for name in ("thirty", *CROWD_STEPS)},
        "scale/thousand.toml": thousand(queue=False),
        "scale/thousand-queue.toml": thousand(queue=True),
        "azure/ramp.toml": fast_ramp(),
        "azure/ramp-as-recorded.toml": ramp_as_recorded(),
        "azure/six-times-slower.csv": slow_profiles(),
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
