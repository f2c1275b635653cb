"""A node with GPUs that only seem to be there: NVIDIA's libraries are stand-ins, and libtorch, workers, agent and gateway are real."""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
import pytest
from cluster import Cluster, wait_until
from http_admin import request
from load import Load

STAND_INS = Path(__file__).parent.parent / "worker-agent" / "tests" / "stand-ins"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    for library in ("nvml", "cuda"):
        subprocess.run([STAND_INS / "build.sh", library, folder], check=True)
    return folder


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """Where a file with the name of a device makes it fail."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


@pytest.fixture
def gpus(new_cluster: Callable[..., Cluster], libraries: Path, faults: Path) -> Iterator[Cluster]:
    """A V100 and two instances of an A100, each for one model; at the end, nothing of MPS is left of them."""
    cluster = new_cluster("--policy", "exclusive")
    environment = {
        "LD_PRELOAD": str(libraries / "libcudart.so.13"),
        "LD_LIBRARY_PATH": str(libraries),
        "CUDA_FAKE_FAULTS": str(faults),
        # The stand-ins read and write files of this test.
        "PACKHORSE_CONFINE_WORKERS": "off",
    }
    flags = ["--devices", "nvidia", "--mps-control", str(STAND_INS / "mps-control"), "--stop-workers-on-exit"]
    agent = cluster.start_agent("node1", *flags, environment=environment)
    wait_until(lambda: len(mps_daemons(cluster.folder)) == 3, "a daemon per device")
    yield cluster
    assert agent.stop() == 0, agent.said()
    wait_until(lambda: not mps_daemons(cluster.folder), "the daemons to end")


def mps_daemons(folder: Path) -> list[int]:
    """The processes with pipes of MPS in a folder that no worker is."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace")
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"CUDA_MPS_PIPE_DIRECTORY={folder}" in environment and "mps-control\0-f" in arguments:
            found.append(int(entry.name))
    return found


def register(cluster: Cluster, folder: Path, name: str) -> None:
    model = models.double(folder)
    cluster.admin.register(model.registration | {"name": name}, model.file)


def ask(cluster: Cluster, name: str, numbers: list[float]):
    given = {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    return request(cluster.inference, "POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [given]}).encode())


def device_of(cluster: Cluster, name: str) -> str:
    (replica,) = cluster.admin.get(f"/v1/models/{name}")["replicas"]
    return replica["device"]


def apart(cluster: Cluster, *models: str) -> bool:
    """Whether each model is served as it was measured on every kind, on a device of its own: estimates make plans that measurements change."""
    shown = [cluster.admin.get(f"/v1/models/{model}") for model in models]
    measured = all(len(model["profiled_on"]) == 3 and model["state"] == "ready" for model in shown)
    devices = [replica["device"] for model in shown for replica in model["replicas"]]
    return measured and len(devices) == len(set(devices)) == len(models)


def test_a_model_is_measured_planned_and_served_on_a_gpu(gpus: Cluster, tmp_path: Path):
    register(gpus, tmp_path, "m")
    gpus.admin.wait_for_state("m", "ready")
    answer = ask(gpus, "m", [1.0, 2.5, -3.0])
    assert answer.status == 200, answer
    assert answer.json()["outputs"][0]["data"] == [2.0, 5.0, -6.0]

    def measured() -> dict | None:
        """Its replica once it is measured; until then it is served by its estimate."""
        shown = gpus.admin.get("/v1/models/m")
        if len(shown["profiled_on"]) < 3 or shown["state"] != "ready" or len(shown["replicas"]) != 1:
            return None
        (replica,) = shown["replicas"]
        return replica if replica["memory_bytes"] and replica["capacity"] else None

    replica = wait_until(measured, "the measurements on three kinds of device")
    # What libtorch's allocator took, in its steps of 2 MiB, and what the runtime says this process may use.
    assert replica["memory_bytes"] > 0 and replica["memory_bytes"] % (2 << 20) == 0
    assert replica["capacity"] == {"batch_size": 8, "in_flight": 2, "multiprocessors": 132}


def test_a_model_is_inspected_and_estimated_while_it_waits_for_its_measurement(gpus: Cluster, tmp_path: Path):
    for name in ("m", "n"):
        register(gpus, tmp_path, name)
    wait_until(lambda: gpus.admin.get("/v1/models/n")["estimated_on"] == ["V100-SXM2-16GB"], "an estimate of the second")
    wait_until(lambda: len(gpus.admin.get("/v1/models/n")["profiled_on"]) == 3, "its measurements")
    assert gpus.admin.get("/v1/models/n")["estimated_on"] == []
    said = gpus.agents["node1"].said()
    assert "inspection of m:1" not in said, "its measurement has begun at once"
    assert said.index("inspection of n:1") < said.index("measurement of n:1")


def test_a_crowd_gets_its_own_answers(gpus: Cluster, tmp_path: Path):
    register(gpus, tmp_path, "m")
    gpus.admin.wait_for_state("m", "ready")

    def check(number: int) -> None:
        numbers = [float(number), 1.0, 0.5 * number]
        answer = ask(gpus, "m", numbers)
        assert answer.status == 200, answer
        assert answer.json()["outputs"][0]["data"] == [2 * x for x in numbers]

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(check, range(600)))
    assert gpus.admin.metric("nv_inference_exec_count", model="m") < 600, "some were batched"


def test_a_gpu_that_fails_takes_no_other_down_and_comes_back(gpus: Cluster, faults: Path, tmp_path: Path):
    for name in ("m", "n"):
        register(gpus, tmp_path, name)
    wait_until(lambda: apart(gpus, "m", "n"), "the models to be measured and served on a device each")
    (spared,) = gpus.worker_pids("n")
    fault = faults / device_of(gpus, "m").removeprefix("node1/")
    with Load(gpus.inference, "m") as broken, Load(gpus.inference, "n") as sound:
        wait_until(lambda: broken.answered() > 50 and sound.answered() > 50, "answers")
        fault.touch()
        wait_until(lambda: gpus.admin.get("/v1/models/m")["state"] != "ready", "the failure to be seen")
        answered = sound.answered()
        wait_until(lambda: sound.answered() > answered + 50, "answers of the other GPU")
        fault.unlink()
        answered = broken.answered()
        wait_until(lambda: broken.answered() > answered + 50, "answers of the GPU that is well again", limit=60)
    # Nobody who was accepted hung or got anything but an answer or a refusal.
    assert set(broken.counts()) <= {200, 503, 504}, broken.counts()
    assert set(sound.counts()) == {200}, sound.counts()
    assert gpus.worker_pids("n") == [spared]
