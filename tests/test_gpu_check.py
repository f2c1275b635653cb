"""`gpu-check` on the CPU: every part runs to its end, and what needs a GPU says so."""

import json
import subprocess
import sys
from pathlib import Path

from cluster import PROGRAMS, processes_of

LAUNCHER = Path(__file__).parent.parent / "lab/gpu-check/launcher.sh"


def check(folder: Path, *flags: str) -> tuple[subprocess.CompletedProcess, dict]:
    """A run with its report."""
    report = folder / "report.json"
    command = [str(PROGRAMS / "gpu-check"), "--python", sys.executable, "--report", str(report), "--work", str(folder / "work")]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=600)
    return done, json.loads(report.read_text())


def rows(report: dict, part: str) -> list[dict]:
    (section,) = [section for section in report["sections"] if section["part"] == part]
    return section["rows"]


def test_every_part_comes_to_its_end_on_a_cpu_with_small_models(tmp_path: Path):
    done, report = check(tmp_path, "--device", "cpu", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {row["what"]: row for section in report["sections"] for row in section["rows"]}
    assert {row["verdict"] for row in verdicts.values()} <= {"met", "measured", "unavailable"}
    # Three models, each with one row and with four, answered as PyTorch does.
    answers = rows(report, "correctness")
    assert [row["verdict"] for row in answers] == ["met"] * 6, answers
    assert all(row["value"] <= 1e-4 for row in answers)
    # Beside what libtorch could do at most, and with and without streams, for one replica and two.
    throughput = rows(report, "throughput")
    assert [row["unit"] for row in throughput] == ["requests/s", "of it"] * 3
    assert all(row["value"] > 0 for row in throughput)
    gains = [row["value"] for row in rows(report, "streams") if "gain" in row["what"]]
    assert len(gains) == 2 and all(gain > 0 for gain in gains)
    # Two that have half of the threads each.
    slowdowns = [row for row in rows(report, "mps") if "slowdown" in row["what"]]
    assert [row["what"].split(":")[0] for row in slowdowns] == ["50 % beside 50 %"] * 2
    # A worker was killed and came back, and its neighbour did not notice.
    killed = [row for row in rows(report, "faults") if row["what"].startswith("a worker is killed")]
    assert [row["verdict"] for row in killed] == ["met"] * 2
    # More models than have memory answer the same once their weights have left and come back.
    assert [row["verdict"] for row in rows(report, "pools")].count("met") == 3, rows(report, "pools")
    # The models that were measured stand beside the thesis' V100, where it has the batch size.
    (section,) = [section for section in report["sections"] if section["part"] == "profiles"]
    (table,) = section["tables"]
    beside = [dict(zip(table["columns"], row)) for row in table["rows"]]
    assert {row["model"] for row in beside} == {"resnet50", "mobilenet_v2", "bert"}
    assert all((row["ms V100"] is not None) == (row["batch"] in (4, 8)) for row in beside)
    # What was offered was offered under both policies that a CPU's profiles suffice for.
    (section,) = [section for section in report["sections"] if section["part"] == "goodput"]
    (table,) = section["tables"]
    assert {row[0] for row in table["rows"]} == {"exclusive", "goodput"}
    # What has no GPU says so.
    wanting = ["MPS", "a fault on the GPU", "copies to the device", "gain of CUDA graphs", "multiprocessors of a share"]
    assert [verdicts[what]["verdict"] for what in wanting] == ["unavailable"] * len(wanting)
    assert not processes_of(tmp_path)


def test_a_host_without_a_gpu_is_told_so_for_every_part_and_nothing_is_missed(tmp_path: Path):
    done, report = check(tmp_path)
    reasons = {row["what"]: row.get("reason", "") for section in report["sections"] for row in section["rows"]}
    if reasons.get("everything") is None:
        return  # There is a GPU here, and so the whole check ran.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NVIDIA driver does not answer" in reasons["everything"]


def test_the_launcher_names_the_pytorch_that_it_found_where_it_is_another(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    for program in ("gpu-check", "packhorse-worker"):
        (tmp_path / "bin" / program).symlink_to("/bin/true")
    launcher = tmp_path / "gpu-check"
    launcher.write_text(LAUNCHER.read_text())
    launcher.chmod(0o755)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nprintf '2.9.1\\n/nowhere\\n'\n")
    other.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'none'}:/usr/bin:/bin", "PYTHON": str(other)}
    done = subprocess.run([str(launcher)], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "PyTorch 2.11 is needed" in done.stderr
    assert f"{other} has 2.9.1" in done.stderr
