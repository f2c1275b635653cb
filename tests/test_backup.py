"""A gateway that is restored from a backup, or that has lost its state, gets its agents and workers back by itself."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import models
from cluster import PROGRAMS, Cluster, is_running, processes_of, wait_until
from load import Load

MakeCluster = Callable[..., Cluster]


def packhorse(cluster: Cluster, *arguments: str) -> str:
    """Runs the command with the cluster's admin token; its standard output."""
    command = [str(PROGRAMS / "packhorse"), *arguments, "--admin-url", f"http://{cluster.admin_address}"]
    command += ["--token-file", str(cluster.state / "admin-token")]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def wait_for_more(load: Load, more: int) -> None:
    enough = load.counts().get(200, 0) + more
    wait_until(lambda: load.counts().get(200, 0) >= enough, f"{more} more answers; so far {load.counts()}")


def test_a_restored_backup_is_obeyed_and_the_workers_serve_on(simulated: MakeCluster, tmp_path: Path):
    cluster = simulated({"m": 10})
    (worker,) = cluster.worker_pids("m")
    backup = tmp_path / "backup.tar"
    assert "1 model files" in packhorse(cluster, "backup", str(backup))
    assert backup.stat().st_mode & 0o777 == 0o600
    # The agent sees later epochs than the backup knows of.
    for _ in range(3):
        assert cluster.gateway.stop() == 0
        cluster.start_gateway()
        wait_until(lambda: cluster.admin.get("/v1/nodes")[0]["state"] == "ready", "the node")
    cluster.admin.register(models.simulated("later"), b"the file of a model that comes after the backup")
    assert cluster.gateway.stop() == 0

    restored = packhorse(cluster, "restore", str(backup), "--state-dir", str(cluster.state), "--replace")
    assert "1 model files are restored" in restored
    cluster.start_gateway()
    cluster.admin.wait_for_state("m", "ready")
    with Load(cluster.inference, "m") as load:
        wait_for_more(load, 20)
    assert [model["name"] for model in cluster.admin.get("/v1/models")] == ["m"]
    assert cluster.worker_pids("m") == [worker], "nothing was loaded again"
    assert is_running(worker)
    # What the gateway wants from now on is obeyed, too.
    assert cluster.admin.call("DELETE", "/v1/models/m").status == 200
    wait_until(lambda: not is_running(worker), "the worker of the removed model to end")


def test_a_program_is_not_measured_again_after_a_restore(new_cluster: MakeCluster, tmp_path: Path):
    first = new_cluster()
    first.start_agent("n", "--devices", "cpu:1")
    model = models.double(tmp_path)
    first.admin.register(model.registration, model.file)
    wait_until(lambda: first.admin.get(f"/v1/models/{model.name}")["state"] == "ready", "the model to serve", 120)
    measured = first.admin.call("GET", f"/v1/profiles?model={model.name}").body.decode().splitlines()
    backup = tmp_path / "backup.tar"
    packhorse(first, "backup", str(backup))

    second = new_cluster()
    assert second.gateway.stop() == 0
    packhorse(first, "restore", str(backup), "--state-dir", str(second.state), "--replace")
    second.start_gateway()
    second.start_agent("other", "--devices", "cpu:1")
    again = model.registration | {"name": "again"}
    second.admin.register(again, model.file)
    wait_until(lambda: second.admin.get("/v1/models/again")["state"] == "ready", "the model to serve", 120)
    # No second measurement has the same times.
    reused = second.admin.call("GET", "/v1/profiles?model=again").body.decode().splitlines()
    assert reused == [line.replace(f"{model.name}:1,", "again:1,") for line in measured]


def test_a_gateway_that_lost_its_state_folder_gets_its_agents_back(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    (worker,) = cluster.worker_pids("m")
    agent = cluster.agents["node1"]
    cluster.gateway.kill()
    shutil.rmtree(cluster.state)
    assert is_running(worker)
    cluster.start_gateway()
    # The agent reads its token again, by which the new gateway proves that it may take the node over.
    wait_until(lambda: cluster.admin.get("/v1/nodes"), "the node to join")
    wait_until(lambda: "the agent obeys another cluster" in agent.said(), "the agent to obey")
    assert is_running(worker), "it serves on, for a gateway that is restored soon"
    cluster.admin.register(models.simulated("m"), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")
    with Load(cluster.inference, "m") as load:
        wait_for_more(load, 20)
    assert agent.is_running()
    workers = [pid for pid, name in processes_of(cluster.folder).items() if name == "packhorse-worker"]
    assert len(workers) == 1
