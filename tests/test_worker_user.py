"""Workers as a user of their own: what a model can read, and the memory that it shares with a gateway of another user."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
import torch
from cluster import Cluster, is_running, wait_until
from conftest import simulated_devices
from http_admin import request
from test_links import shared_mappings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
# Users without an entry in the system.
WORKERS, GATEWAY = 61_234, 61_235


class Reader(torch.nn.Module):
    """The first bytes of a file whose name is given byte by byte."""

    def forward(self, path: torch.Tensor) -> torch.Tensor:
        name = ""
        for i in range(path.size(0)):
            name += chr(int(path[i]))
        if not name.startswith("/"):
            # The worker has tried it with numbers of its own.
            return torch.zeros(8)
        return torch.from_file(name, False, 8, dtype=torch.uint8).to(torch.float32)


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters in folders that other users can pass through."""
    made = []

    def make(*gateway_flags: str, **options) -> Cluster:
        folder = Path(tempfile.mkdtemp(prefix="packhorse-user"))
        folder.chmod(0o711)
        if user := options.get("user"):
            (folder / "gateway").mkdir(mode=0o700)
            os.chown(folder / "gateway", user[0], user[0])
        made.append(Cluster(folder, "--worker-user", str(WORKERS), *gateway_flags, **options))
        return made[-1]

    try:
        yield make
    finally:
        for cluster in made:
            cluster.close()
            shutil.rmtree(cluster.folder)


def uids(pid: int) -> set[str]:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))
    return set(line.split()[1:])


def read(cluster: Cluster, file: Path) -> tuple[int, str]:
    """The answer of the model to a file."""
    name = str(file).encode()
    given = {"name": "path", "datatype": "FP32", "shape": [len(name)], "data": list(name)}
    answer = request(cluster.inference, "POST", "/v2/models/reader/infer", json.dumps({"inputs": [given]}).encode())
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("own_workers", ["1", "0"], ids=["own worker", "pool worker"])
def test_a_program_reads_nothing_of_a_gateway_on_its_machine_even_unconfined(make_cluster: Callable[..., Cluster], own_workers: str):
    secret = tempfile.NamedTemporaryFile()
    secret.write(b"0123456789abcdef0123456789abcdef")
    secret.flush()
    cluster = make_cluster("--link-secret-file", secret.name)
    flags = ["--devices", "cpu", "--worker-user", str(WORKERS), "--confine-workers", "off", "--link-secret-file", secret.name]
    flags += ["--own-workers", own_workers]
    agent = cluster.start_agent("node1", *flags)
    inputs, outputs = [models.tensor("path", "FP32", [-1])], [models.tensor("bytes", "FP32", [8])]
    reader = models.make(cluster.folder, Reader(), models.registration("reader", inputs, outputs, max_batch_size=0))
    cluster.admin.register(reader.registration, reader.file)
    cluster.admin.wait_for_state("reader", "ready")
    (worker,) = cluster.worker_pids("reader")
    assert uids(worker) == {str(WORKERS)} and uids(agent.pid) == {"0"}

    public = cluster.folder / "public"
    public.write_text("the text")
    public.chmod(0o644)
    status, body = read(cluster, public)
    assert status == 200 and json.loads(body)["outputs"][0]["data"] == list(b"the text")
    closed = [cluster.state / name for name in ("admin-token", "agent-token", "packhorse.db")]
    closed += [Path(secret.name), Path(f"/proc/{cluster.gateway.pid}/environ"), Path(f"/proc/{worker}/environ")]
    for file in closed:
        assert file.exists()
        status, body = read(cluster, file)
        assert status == 500 and "Permission denied" in body, (file, status, body)

    # The next agent adopts the worker and can stop it.
    agent.kill()
    cluster.start_agent("node1", *flags)
    assert cluster.worker_pids("reader") == [worker]
    assert read(cluster, public)[0] == 200
    assert cluster.admin.call("DELETE", "/v1/models/reader").status == 200
    wait_until(lambda: not is_running(worker), "the worker to end")


def rights_of_the_unit() -> tuple[str, ...]:
    """Starts a program with the rights that the agent's unit leaves it."""
    unit = (Path(__file__).parent.parent / "deploy/systemd/packhorse-agent.service").read_text()
    (line,) = (line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet="))
    rights = [name.removeprefix("CAP_").lower() for name in line.split("=")[1].split()]
    assert len(rights) == 7
    return "setpriv", "--no-new-privs", "--bounding-set", ",".join(["-all", *(f"+{right}" for right in rights)])


def test_a_gateway_of_another_user_shares_memory_with_workers_by_their_group(make_cluster: Callable[..., Cluster]):
    """With the users and the rights of the units."""
    cluster = make_cluster(user=(GATEWAY, WORKERS))
    flags = simulated_devices(cluster, {"m": 1})
    Path(flags[-1]).chmod(0o644)
    flags += ["--worker-user", str(WORKERS), "--stop-workers-on-exit"]
    agent = cluster.start_agent("node1", *flags, prefix=rights_of_the_unit())
    x, y = models.tensor("x", "FP32", [-1, 50_000]), models.tensor("y", "FP32", [-1, 50_000])
    cluster.admin.register(models.registration("m", [x], [y], rate_rps=50), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")
    (worker,) = cluster.worker_pids("m")
    assert uids(cluster.gateway.pid) == {str(GATEWAY)}
    assert uids(worker) == {str(WORKERS)}
    for pid in (cluster.gateway.pid, worker):
        wait_until(lambda pid=pid: shared_mappings(pid) == {"rw-s": 1, "r--s": 1}, f"{pid} to share memory")
    given = {"name": "x", "datatype": "FP32", "shape": [1, 50_000], "data": [0] * 50_000}
    answer = request(cluster.inference, "POST", "/v2/models/m/infer", json.dumps({"inputs": [given]}).encode())
    assert answer.status == 200
    os.kill(worker, signal.SIGKILL)
    (next_worker,) = wait_until(lambda: [pid for pid in cluster.worker_pids("m") if pid != worker], "another worker")
    # It adopts and stops what an agent before it has started.
    agent.kill()
    agent = cluster.start_agent("node1", *flags, prefix=rights_of_the_unit())
    assert cluster.worker_pids("m") == [next_worker]
    assert agent.stop() == 0
    assert not is_running(next_worker)
