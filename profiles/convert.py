#!/usr/bin/env python3
"""Writes the published profiles in the profile contract: `python3 profiles/convert.py`, from sources/ into this folder.

The contract (README.md) wants the median latency of one batch in ms and a replica's memory in MiB. Numbers are computed in
decimal where the source allows it, so that nothing is added to or lost from what was published.
"""

import csv
from decimal import Decimal
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = [
    "model",
    "device_kind",
    "batch_size",
    "compute_share_pct",
    "latency_ms",
    "latency_p99_ms",
    "memory_mib",
    "achieved_occupancy_pct",
    "mean_occupancy_pct",
    "sm_utilization_pct",
]
V100_MEMORY_MIB = 16384


def read(name):
    with (HERE / "sources" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def write(name, rows):
    with (HERE / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def thesis(row):
    """A row of Table A.1. Latency comes from the throughput, which has more digits than the printed latency."""
    memory = row["mem_cap_pct"] and (Decimal(row["mem_cap_pct"]) * V100_MEMORY_MIB / 100).normalize()
    return {
        "model": row["model"],
        "device_kind": "V100-SXM2-16GB",
        "batch_size": row["batch_size"],
        "latency_ms": int(row["batch_size"]) / float(row["throughput_rps"]) * 1000,
        "memory_mib": memory and f"{memory:f}",
        "achieved_occupancy_pct": row["ach_occ_pct"],
        "mean_occupancy_pct": row["wavg_ach_occ_pct"],
        "sm_utilization_pct": row["wavg_sm_util_pct"],
    }


def clockwork(row):
    """The five batch sizes of a model of the zoo. It has no memory but the weights', which is not a replica's."""
    for batch_size in (1, 2, 4, 8, 16):
        yield {
            "model": row["model"],
            "device_kind": "V100",
            "batch_size": batch_size,
            "latency_ms": row[f"exec_b{batch_size}_ms"],
        }


if __name__ == "__main__":
    write("v100-thesis.csv", [thesis(row) for row in read("thesis-table-a1.csv")])
    write("v100-clockwork.csv", [line for row in read("clockwork-appendix-a.csv") for line in clockwork(row)])
