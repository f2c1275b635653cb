"""Measurements by hand on this machine, without a gateway: real workers on the CPU."""

import csv
import json
import os
import subprocess
from pathlib import Path

import models
import pytest
from cluster import PROGRAMS


def run(*arguments, expected: int = 0, path: str | None = None) -> subprocess.CompletedProcess:
    """The command, without anything that could lead it to a gateway."""
    environment = {"PATH": os.environ["PATH"] if path is None else path, "HOME": "/nowhere"}
    command = [str(PROGRAMS / "packhorse"), "profile", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == expected, (arguments, done.stdout, done.stderr)
    return done


def spec(folder: Path, model: models.Model) -> str:
    """SPEC.json=FILE of a model."""
    file = folder / f"{model.name}.json"
    file.write_text(json.dumps(model.registration))
    return f"{file}={model.file}"


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    return [spec(tmp_path, model) for model in (models.convolutions(tmp_path), models.double(tmp_path))]


def test_pairs_are_measured_alone_and_together_and_written_as_a_table(two: list[str], tmp_path: Path):
    table = tmp_path / "pairs.csv"
    arguments = ["pairs", *two, "--batch-sizes", "1,2", "--shares", "50/50", "--runs", 1, "--seconds", 0.2]
    done = run(*arguments, "--output", table, "--json")
    pairs = json.loads(done.stdout)
    assert len(pairs) == 4
    sizes = [(a["batch_size"], b["batch_size"]) for a, b in pairs]
    assert sizes == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for pair in pairs:
        assert [member["model"] for member in pair] == ["convolutions", "double"]
        for member in pair:
            assert member["compute_share_pct"] == 50
            assert member["latency_ms"] > 0
            assert member["slowdown"] == pytest.approx(member["latency_ms"] / member["alone_ms"])
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[3]["latency_b_ms"]) == pytest.approx(pairs[3][1]["latency_ms"], abs=1e-5)
    assert float(rows[3]["alone_a_ms"]) == pytest.approx(pairs[3][0]["alone_ms"], abs=1e-5)
    assert [rows[3][name] for name in ("model_a", "batch_a", "share_b_pct")] == ["convolutions:1", "2", "50.0"]


def test_a_measured_table_is_what_policies_plan_by(two: list[str], tmp_path: Path):
    """Replicas that are said to slow each other ten times do not get the rate that they get where nothing is said."""
    header = "model_a,model_b,batch_a,batch_b,share_a_pct,share_b_pct,latency_a_ms,latency_b_ms,alone_a_ms,alone_b_ms"
    (tmp_path / "pairs.csv").write_text(f"{header}\na,b,8,8,100,100,100,100,10,10\n" + "a,b,4,4,100,100,60,60,6,6\n" * 20)
    columns = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,"
    columns += "achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct"
    rows = "".join(f"{model},T4,{size},100,{ms},,500,,,40\n" for model in "ab" for size, ms in ((4, 6), (8, 10)))
    (tmp_path / "profiles.csv").write_text(f"{columns}\n{rows}")
    predicted = []
    for measured in ("", 'measured_pairs = ["pairs.csv"]'):
        scenario = tmp_path / "scenario.toml"
        entries = "".join(f'[[models]]\nname = "{model}"\nrate_rps = 350\nslo_ms = 80\n' for model in "ab")
        scenario.write_text(
            f'name = "s"\nprofiles = ["profiles.csv"]\n{measured}\n[[devices]]\nkind = "T4"\ncount = 1\n{entries}'
        )
        command = [PROGRAMS / "packhorse", "plan", "--scenario", scenario, "--policy", "goodput", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        predicted.append(json.loads(done.stdout)["predicted_goodput_rps"])
    assert predicted[1] < 0.8 * predicted[0], predicted


def test_a_profile_is_estimated_from_a_program_alone(two: list[str]):
    file, artifact = two[0].split("=")
    done = run("estimate", artifact, "--spec", file, "--device-kind", "H100-SXM5-80GB", "--json")
    report = json.loads(done.stdout)
    sizes = [row["batch_size"] for row in report["profiles"]]
    assert sizes[0] == 1 and sizes == sorted(sizes)
    assert all(row["latency_ms"] > 0 and row["device_kind"] == "H100-SXM5-80GB" for row in report["profiles"])
    assert "expected error" in done.stderr
    no_program = run("estimate", file, "--spec", file, "--device-kind", "T4", expected=1)
    assert "cannot be estimated: " in no_program.stderr


def test_a_batch_of_a_cpu_is_recorded_and_has_no_kernels(two: list[str], tmp_path: Path):
    file, artifact = two[0].split("=")
    trace = tmp_path / "trace.json"
    done = run("record", file, "--artifact", artifact, "--batch-size", 2, "--trace", trace)
    assert "no kernels: a CPU has none" in done.stdout
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::adaptive_avg_pool2d" in names, names
    assert "recorded on a CPU" in run("kernels", trace, expected=1).stderr


def test_what_cannot_be_measured_says_why(two: list[str], tmp_path: Path):
    file, artifact = two[1].split("=")
    without = run("record", file, "--artifact", artifact, "--ncu", path="/nowhere", expected=1)
    assert "there is no program ncu in PATH" in without.stderr
    too_large = run("record", file, "--artifact", artifact, "--batch-size", 4000, expected=1)
    assert "batch_size: expected 1 to" in too_large.stderr
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"no program")
    refused = run("pairs", f"{file}={broken}", expected=1)
    assert "cannot be loaded as TorchScript" in refused.stderr
