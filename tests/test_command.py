"""The `packhorse` command against a running gateway: what README shows, and that `--json` is for programs."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from cluster import PROGRAMS
from conftest import Served


class Command:
    """The command with the addresses and the token of a gateway."""

    def __init__(self, served: Served):
        self.flags = ["--url", f"http://{served.address}", "--admin-url", f"http://{served.admin.address}"]
        self.flags += ["--token-file", str(served.cluster.state / "admin-token")]

    def run(self, *arguments, expected: int = 0) -> subprocess.CompletedProcess:
        command = [str(PROGRAMS / "packhorse"), *map(str, arguments), *self.flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == expected, (arguments, done.stdout, done.stderr)
        return done

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def command(served: Served) -> Command:
    return Command(served)


def test_a_model_is_registered_asked_and_removed(served: Served, command: Command, tmp_path: Path):
    double = served.models["double"]
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**double.registration, "name": "by-command"}))
    command.run("model", "register", spec, "--artifact", double.file, "--slo-ms", 9000, "--wait")
    shown = command.json("model", "show", "by-command")
    shown = shown[0] if isinstance(shown, list) else shown
    assert (shown["state"], shown["slo_ms"]) == ("ready", 9000)
    assert "by-command" in command.run("model", "list").stdout

    saved = tmp_path / "y.npy"
    command.run("infer", "by-command", "--input", "x=[[1, 2, 3]]", "--output", f"y={saved}")
    assert np.load(saved).tolist() == [[2, 4, 6]]
    command.run("model", "remove", "by-command")
    refused = command.run("infer", "by-command", "--input", "x=[[1]]", expected=1)
    assert "by-command" in refused.stderr
    assert refused.stdout == ""


def test_a_registration_that_fails_says_why(served: Served, command: Command, tmp_path: Path):
    spec, file = tmp_path / "spec.json", tmp_path / "model.pt"
    spec.write_text(json.dumps({**served.models["double"].registration, "name": "broken"}))
    file.write_bytes(b"no program")
    try:
        failed = command.run("model", "register", spec, "--artifact", file, "--wait", expected=1)
        assert "broken" in failed.stdout + failed.stderr
    finally:
        command.run("model", "remove", "broken")


def test_arrays_are_inputs(served: Served, command: Command, tmp_path: Path):
    array = tmp_path / "image.npy"
    image = np.random.default_rng(3).standard_normal((2, 3, 32, 32), dtype=np.float32)
    np.save(array, image)
    saved = tmp_path / "logits.npy"
    command.run("infer", "convolutions", "--input", f"image={array}", "--output", f"logits={saved}")
    expected = served.models["convolutions"].answer(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(np.load(saved), expected, atol=1e-5, rtol=1e-5)


def test_the_state_of_everything_is_told_to_people_and_programs(served: Served, command: Command, tmp_path: Path):
    assert "cpu-node" in command.run("status").stdout
    assert command.json("status")
    plan = command.json("plan")
    assert plan["policy"] == "goodput"
    assert "convolutions" in {replica["model"] for replica in plan["replicas"]}
    assert command.run("plan", "--explain").stdout.startswith(command.run("plan").stdout.splitlines()[0])
    explained = command.json("plan", "--explain")
    assert explained["generation"] == plan["generation"]
    # A model that was removed just now may still be in the plan.
    registered = {model["name"] for model in command.json("model", "list")}
    of = [model["explanation"]["served_fraction"] for model in explained["models"] if model["name"] in registered]
    assert of and all(0 <= fraction <= 1 for fraction in of)
    csv = tmp_path / "profiles.csv"
    command.run("profile", "export", csv)
    assert "convolutions:1," in csv.read_text()
    command.run("profile", "import", csv)


def test_a_gateway_that_is_not_there_is_said_so():
    arguments = ["status", "--admin-url", "http://127.0.0.1:1", "--url", "http://127.0.0.1:1", "--token-file", "/dev/null"]
    done = subprocess.run([str(PROGRAMS / "packhorse"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert done.stderr and "panicked" not in done.stderr
