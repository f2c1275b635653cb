"""What the tests share: clusters, and the models they serve."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
import triton_clients
from cluster import Cluster, processes_of, wait_until
from http_admin import request

BODY_LIMIT = 4 << 20


class Served:
    """The cluster that most tests share: the CPU of this machine with small models, all of them ready."""

    def __init__(self, folder: Path):
        self.cluster = Cluster(
            folder, "--profile-time-limit-ms", "2000", "--body-limit-bytes", str(BODY_LIMIT), "--artifact-root", str(folder), "--system-shared-memory"
        )
        self.admin = self.cluster.admin
        self.address = self.cluster.inference
        self.folder = folder
        self.models: dict[str, models.Model] = {}

    def start(self) -> None:
        folder = self.folder / "models"
        folder.mkdir()
        self.cluster.start_agent("cpu-node", "--devices", "cpu", "--stop-workers-on-exit")
        # Given, so that its batches are of 8 whatever else this machine does; the others are measured.
        (node,) = self.admin.get("/v1/nodes")
        csv = models.profiles(folder, {"slow": 5}, kind=node["devices"][0]["kind"])
        answer = self.admin.call("PUT", "/v1/profiles", csv.read_bytes())
        assert answer.status == 200, answer
        makers = [models.convolutions, models.sum_of_row, models.double, models.without_batch, models.moody]
        makers += [models.identity, models.slow]
        made = [make(folder) for make in [models.sum_and_difference, *makers]]
        for model in made:
            self.models[model.name] = model
            self.admin.register(model.registration, model.file)
        for model in made:
            self.wait_until_ready(model)
        wait_until(lambda: request(self.address, "GET", "/v2/health/ready").status == 200, "the gateway to be ready")

    def add_version(self) -> None:
        """Serves version 2 of "sum-and-difference" beside version 1, which is served for another ten minutes.

        A version that is ready gets a tenth of the requests at first; this returns when it gets all of them.
        """
        model = models.sum_and_difference(self.folder / "models", version=2)
        self.admin.register(model.registration, model.file)
        self.wait_until_ready(model)
        wait_until(lambda: self.admin.get(f"/v1/models/{model.name}?version=2")["share_pct"] == 100, "version 2 to get all requests")

    def wait_until_ready(self, model: models.Model) -> None:
        version = model.registration.get("version", 1)
        path = f"/v2/models/{model.name}/versions/{version}/ready"
        wait_until(lambda: self.is_ready(model.name, path), f"{model.name}:{version} to be ready", limit=300)

    def is_ready(self, model: str, path: str) -> bool:
        """Whether a version of a model is ready; fails when it never will be."""
        view = self.admin.get(f"/v1/models/{model}")
        assert view["state"] != "failed", view
        return request(self.address, "GET", path).status == 200

    def infer(self, model: str, body: bytes, headers: dict | None = None):
        """A raw inference request."""
        return request(self.address, "POST", f"/v2/models/{model}/infer", body, headers)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served"))
    try:
        served.start()
        yield served
        for agent in served.cluster.agents.values():
            agent.stop()
        assert set(processes_of(served.folder).values()) <= {"packhorse-gateway"}, "the agent left workers behind"
    finally:
        served.cluster.close()


@pytest.fixture(params=["sync", "asyncio"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator:
    """tritonclient, both kinds."""
    client = triton_clients.connect(request.param, served.address)
    yield client
    client.close()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of the test's own, and ends them."""
    made = []

    def make(*gateway_flags: str, **options) -> Cluster:
        folder = tmp_path / f"cluster{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, *gateway_flags, **options))
        return made[-1]

    try:
        yield make
    finally:
        for cluster in made:
            cluster.close()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], None]]:
    """Mounts a disk of so many bytes on a folder that does not exist yet."""
    mounted: list[Path] = []

    def mount(folder: Path, size: int) -> None:
        folder.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            pytest.skip(f"only root may mount a small disk: {run.stderr.strip()}")
        mounted.append(folder)

    try:
        yield mount
    finally:
        for folder in mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all room of a disk, and returns the file that has it."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    return file


@pytest.fixture
def simulated(new_cluster: Callable[..., Cluster]) -> Callable[..., Cluster]:
    """Makes a cluster of one node with simulated devices that serves the models given with their latency in milliseconds."""

    def make(latencies_ms: dict[str, float], *gateway_flags: str, devices: int = 1, **registration) -> Cluster:
        cluster = new_cluster("--lease-ms", "1500", *gateway_flags)
        cluster.agent_flags = simulated_devices(cluster, latencies_ms, devices)
        cluster.start_agent("node1", *cluster.agent_flags)
        for name in latencies_ms:
            cluster.admin.register(models.simulated(name, **registration), f"the file of {name}".encode())
        for name in latencies_ms:
            cluster.admin.wait_for_state(name, "ready")
        return cluster

    return make


def simulated_devices(cluster: Cluster, latencies_ms: dict[str, float], devices: int = 1) -> list[str]:
    """An agent's flags."""
    csv = models.profiles(cluster.folder, latencies_ms)
    return ["--devices", f"simulated:V100-SXM2-16GB:{devices}", "--profiles", str(csv)]
