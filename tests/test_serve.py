"""`packhorse serve`: gateway, agent and models of a folder as one process, of which nothing is left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
from cluster import PROGRAMS, Process, is_running, processes_of, wait_until
from http_admin import Admin, request


class Serve:
    """A running `packhorse serve`, with its state in a folder."""

    def __init__(self, folder: Path, *flags: str, environment: dict[str, str] | None = None, program: Path = PROGRAMS / "packhorse"):
        self.state = folder / "state"
        command = [str(program), "serve", "--state-dir", str(self.state)]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *flags]
        self.process = Process(command, folder / "serve.log", environment)

    def wait_until_ready(self) -> None:
        ready = wait_until(self.ready, "serve to be ready", limit=60)
        self.inference, admin = (ready[name].removeprefix("http://") for name in ("inference", "admin"))
        self.admin = Admin(admin, (self.state / "admin-token").read_text().strip())

    def ready(self) -> dict | None:
        assert self.process.is_running(), self.process.said()
        lines = [line for line in self.process.said().splitlines() if line.startswith("ready ")]
        return json.loads(lines[0].removeprefix("ready ")) if lines else None

    def pid_of(self, program: str) -> int:
        (pid,) = [pid for pid, name in processes_of(self.state).items() if name == program]
        return pid

    def wait(self, limit: float = 40) -> int:
        return self.process.popen.wait(limit)


@contextlib.contextmanager
def serving_on_cpu(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[Serve]:
    """Gives programs that serve on the machine's CPU and measure no longer than they must, until nobody needs them."""
    environment = {"PACKHORSE_PROFILE_TIME_LIMIT_MS": "500", **(environment or {})}
    running = Serve(folder, "--devices", "cpu", *flags, environment=environment)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.process.stop(60)
    assert processes_of(folder) == {}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    started = []

    def start(*flags: str, environment: dict[str, str] | None = None) -> Serve:
        started.append(Serve(tmp_path, *flags, environment=environment))
        return started[-1]

    try:
        yield start
    finally:
        for serve in started:
            if serve.process.is_running():
                serve.process.stop(60)
        left = processes_of(tmp_path)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == {}, "serve left programs behind"


@pytest.fixture
def simulated(serve: Callable[..., Serve], tmp_path: Path) -> Callable[[], Serve]:
    """Starts it with a simulated GPU and the model `m` in a repository, and waits until a worker serves it."""
    write_model(tmp_path / "models", models.simulated("m"), 1, b"the file of m")
    profiles = models.profiles(tmp_path, {"m": 5})
    flags = ["--devices", "simulated:V100-SXM2-16GB:1", "--model-repository", str(tmp_path / "models")]

    def start() -> Serve:
        running = serve(*flags, environment={"PACKHORSE_PROFILES": str(profiles)})
        running.wait_until_ready()
        running.admin.wait_for_state("m", "ready")
        return running

    return start


def write_model(repository: Path, registration: dict, version: int, program: bytes) -> None:
    folder = repository / registration["name"]
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / "model.pt").write_bytes(program)
    said_by_folders = ("version", "artifact")
    registration = {key: value for key, value in registration.items() if key not in said_by_folders}
    (folder / "model.json").write_text(json.dumps(registration))


def infer(serve: Serve) -> int:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return request(serve.inference, "POST", "/v2/models/double/infer", json.dumps({"inputs": [x]}).encode()).status


def test_a_model_of_the_repository_is_served_and_a_changed_one_after_the_next_start(serve, tmp_path: Path):
    made = models.double(tmp_path)
    repository = tmp_path / "models"
    program = made.file.read_bytes()
    described = made.registration | {"postprocess": {"y": {"top_k": 1, "labels": "labels.txt"}}}
    write_model(repository, described, 1, program)
    (repository / "double/labels.txt").write_text("a\nb\nc\nd\n")
    flags = ["--devices", "cpu", str(repository)]
    running = serve(*flags)
    running.wait_until_ready()
    assert "double:1 registered\n" in running.process.said()
    running.admin.wait_for_state("double", "ready", limit=120)
    assert infer(running) == 200
    first = running.admin.get("/v1/models/double")["artifact"]
    assert running.process.stop() == 0
    assert processes_of(tmp_path) == {}

    # Nothing has changed.
    running = serve(*flags)
    running.wait_until_ready()
    assert not re.search("^double:1 ", running.process.said(), re.MULTILINE)
    assert running.process.stop() == 0

    # Another objective, then another file.
    write_model(repository, described | {"slo_ms": 999}, 1, program)
    running = serve(*flags)
    running.wait_until_ready()
    assert "double:1 changed\n" in running.process.said()
    assert running.admin.get("/v1/models/double")["slo_ms"] == 999
    assert running.process.stop() == 0

    other = models.sum_of_row(tmp_path)
    write_model(repository, described, 1, other.file.read_bytes())
    running = serve(*flags)
    running.wait_until_ready()
    assert "double:1 registered again" in running.process.said()
    assert running.admin.get("/v1/models/double")["artifact"] != first


def test_what_the_repository_does_not_say_stays_as_it_was_changed(serve, tmp_path: Path):
    repository = tmp_path / "models"
    registration = models.simulated("m")
    for field in ("rate_rps", "rate", "priority", "queue_limit", "max_cold_wait_ms", "cache"):
        registration.pop(field, None)
    flags = ["--devices", "simulated:V100-SXM2-16GB:1", "--model-repository", str(repository)]
    environment = {"PACKHORSE_PROFILES": str(models.profiles(tmp_path, {"m": 5}))}

    defaults = {"rate_rps": None, "rate": "max", "priority": 5, "min_replicas": 1, "queue_limit": None, "max_cold_wait_ms": None, "cache": False}

    def settings_after_start(version: int, program: bytes, said: dict, change: dict) -> dict:
        write_model(repository, registration | said, version, program)
        running = serve(*flags, environment=environment)
        running.wait_until_ready()
        found = running.admin.get("/v1/models/m")
        if change:
            assert running.admin.call("PATCH", "/v1/models/m", change).status == 200
        assert running.process.stop() == 0
        return {field: found[field] for field in defaults}

    changed = {"rate_rps": 7, "rate": "measured", "priority": 8, "min_replicas": 2, "queue_limit": 99, "max_cold_wait_ms": 700, "cache": True}
    assert settings_after_start(1, b"one", {}, changed) == defaults
    assert settings_after_start(1, b"one", {}, {}) == changed
    # Nor does another file of the version, or a new version, bring the defaults back.
    assert settings_after_start(1, b"two", {}, {}) == changed
    of_name = {field: changed[field] for field in ("rate_rps", "rate", "priority", "min_replicas")}
    assert settings_after_start(2, b"three", {}, {}) == defaults | of_name
    # What the file says counts, whatever was changed, and null is the default.
    said = {"rate_rps": None, "priority": 3}
    assert settings_after_start(2, b"three", said, changed) == defaults | of_name | said
    assert settings_after_start(2, b"three", said, {}) == changed | said


@pytest.mark.parametrize("program", ["packhorse-gateway", "packhorse-agent"])
def test_the_end_of_one_program_is_the_end_of_all(simulated, program: str):
    running = simulated()
    worker = running.pid_of("packhorse-worker")
    os.kill(running.pid_of(program), signal.SIGKILL)
    assert running.wait() == 128 + signal.SIGKILL, running.process.said()
    assert f"{program} has ended: signal: 9" in running.process.said()
    assert not is_running(worker)
    assert processes_of(running.state) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_programs_and_leaves_nothing(simulated, number: int):
    running = simulated()
    worker = running.pid_of("packhorse-worker")
    running.process.popen.send_signal(number)
    assert running.wait() == 0, running.process.said()
    assert not is_running(worker)
    assert processes_of(running.state) == {}


def test_the_programs_end_when_serve_is_killed(simulated):
    running = simulated()
    running.process.kill()
    wait_until(lambda: processes_of(running.state) == {}, "every program to end")
    # Gateway and agent have ended in order: both say so.
    assert "stopping all workers" in running.process.said()
    assert "answering the requests in flight" in running.process.said()


def test_a_mistake_in_one_model_of_the_repository_is_a_finding_and_the_others_serve(simulated, tmp_path: Path):
    repository = tmp_path / "models"
    (repository / "lost+found").mkdir(parents=True)
    write_model(repository, models.simulated("changed"), 1, b"the first file")
    (repository / "triton/1").mkdir(parents=True)
    (repository / "triton/config.pbtxt").write_text("name: \"triton\"")
    write_model(repository, models.simulated("pipe"), 1, b"")
    (repository / "pipe/model.json").unlink()
    os.mkfifo(repository / "pipe/model.json")
    running = simulated()
    places = ["pipe", "triton"]
    assert [finding["text"] for finding in wait_for_repository_finding(running)] == [
        "the model repository is not served as it is there: " + ", ".join(places)
    ]
    assert running.admin.get("/v1/models/changed")["version"] == 1
    first = running.admin.get("/v1/models/changed")["artifact"]
    assert running.process.stop() == 0

    # Another file, with a registration that the gateway refuses.
    write_model(repository, models.simulated("changed") | {"queue_limit": 0}, 1, b"the second file")
    running = simulated()
    (finding,) = wait_for_repository_finding(running)
    assert "changed/1: queue_limit: 0 is not between" in finding["cause"]
    assert running.admin.get("/v1/models/changed")["artifact"] == first

    # A model that is refused for its signature is refused before anything is removed, too.
    assert running.process.stop() == 0
    write_model(repository, models.simulated("changed") | {"max_batch_size": 5000}, 1, b"the second file")
    running = simulated()
    (finding,) = wait_for_repository_finding(running)
    assert "changed/1: max_batch_size: 5000" in finding["cause"]
    assert running.admin.get("/v1/models/changed")["artifact"] == first


def wait_for_repository_finding(running: Serve) -> list[dict]:
    def of_repository() -> list[dict]:
        return [finding for finding in running.admin.get("/v1/findings") if "repository" in finding["text"]]

    return wait_until(of_repository, "a finding about the repository")


def test_a_repository_that_cannot_be_read_starts_nothing(serve, tmp_path: Path):
    running = serve("--model-repository", str(tmp_path / "models"))
    assert running.wait() == 1
    assert f"cannot read {tmp_path}/models" in running.process.said()
    assert not running.state.exists()
    two = serve(str(tmp_path / "models"), "--model-repository", str(tmp_path / "others"))
    assert two.wait() == 1
    assert "two model repositories" in two.process.said()


def test_serve_goes_on_where_its_standard_error_cannot_be_written(tmp_path: Path):
    (tmp_path / "models/no-model").mkdir(parents=True)
    command = [str(PROGRAMS / "packhorse"), "serve", "--state-dir", str(tmp_path / "state"), "--devices", "cpu"]
    command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--model-repository", str(tmp_path / "models")]
    with open("/dev/full", "wb") as full:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full)
    try:
        assert running.stdout.readline().startswith(b"ready "), running.wait(60)
        running.terminate()
        assert running.wait(60) == 0
    finally:
        running.kill()


def test_an_address_in_use_is_the_gateways_error(serve, simulated):
    running = simulated()
    command = [str(PROGRAMS / "packhorse"), "serve", "--state-dir", str(running.state / "second"), "--listen", running.inference]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert second.returncode == 1
    assert f"cannot listen on {running.inference} (--listen)" in second.stderr
    assert "packhorse-gateway has ended: exit status: 1" in second.stderr
