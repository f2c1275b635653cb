"""SIGKILL in the middle of load: every request is answered or refused, none hangs, and what was stored stays."""

import os
import signal
import sqlite3
from collections.abc import Callable

import models
import pytest
from cluster import Cluster, is_running, processes_of, wait_until
from conftest import simulated_devices
from http_admin import request
from load import HANGS, Load

MakeCluster = Callable[..., Cluster]


def wait_for_answers(load: Load, more: int) -> None:
    """Waits until that many more requests were answered."""
    enough = load.answered() + more
    wait_until(lambda: load.answered() >= enough, f"{more} more answers; so far {load.counts()}")


def check_refusals_only(load: Load) -> None:
    """Every request was answered, or refused with a status that says: try again."""
    assert set(load.counts()) <= {200, 503, 504}, load.counts()


def test_a_killed_worker_is_replaced_and_its_requests_are_answered_or_refused(simulated: MakeCluster):
    cluster = simulated({"m": 20})
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 50)
        (first,) = cluster.worker_pids("m")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: cluster.worker_pids("m") not in ([], [first]), "another worker")
        wait_for_answers(load, 50)
    check_refusals_only(load)
    (replica,) = cluster.admin.get("/v1/models/m")["replicas"]
    assert replica["restarts"] == 1


def test_a_worker_killed_again_and_again_comes_back_each_time(simulated: MakeCluster):
    cluster = simulated({"m": 5})
    with Load(cluster.inference, "m") as load:
        for _ in range(3):
            wait_for_answers(load, 20)
            (pid,) = cluster.worker_pids("m")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: cluster.worker_pids("m") not in ([], [pid]), "another worker")
        wait_for_answers(load, 20)
    check_refusals_only(load)


def test_with_two_replicas_the_loss_of_one_fails_no_request(simulated: MakeCluster):
    # One replica answers at most 8 rows in 40 ms, 200 a second.
    cluster = simulated({"m": 40}, "--policy", "first-fit", devices=2, rate_rps=300)
    both = cluster.worker_pids("m")
    assert len(both) == 2, cluster.admin.get("/v1/plan")
    with Load(cluster.inference, "m", clients=16) as load:
        wait_for_answers(load, 100)
        os.kill(both[0], signal.SIGKILL)
        wait_for_answers(load, 200)
        wait_until(lambda: len(set(cluster.worker_pids("m")) - {both[0]}) == 2, "a second worker again")
    assert load.counts().keys() == {200}, load.counts()


def test_a_killed_agent_costs_no_request_and_its_successor_adopts_the_workers(simulated: MakeCluster):
    cluster = simulated({"m": 10, "n": 10}, devices=2)
    before = cluster.worker_pids("m") + cluster.worker_pids("n")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 50)
        cluster.agents["node1"].kill()
        wait_for_answers(load, 50)
        wait_until(lambda: cluster.admin.get("/v1/nodes")[0]["state"] == "lost", "the lease to end")
        wait_for_answers(load, 50)
        cluster.start_agent("node1", *cluster.agent_flags)
        wait_for_answers(load, 50)
    assert load.counts().keys() == {200}, load.counts()
    wait_until(lambda: cluster.worker_pids("m") + cluster.worker_pids("n") == before, "the workers to be known again")
    assert all(replica["restarts"] == 0 for replica in cluster.admin.get("/v1/models/m")["replicas"])
    assert len([name for name in processes_of(cluster.folder).values() if name == "packhorse-worker"]) == 2


def test_an_agent_that_is_stopped_leaves_its_workers_serving(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    (pid,) = cluster.worker_pids("m")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)
        assert cluster.agents["node1"].stop() == 0
        wait_for_answers(load, 50)
    assert load.counts().keys() == {200}, load.counts()
    assert is_running(pid)


def test_a_worker_that_dies_while_there_is_no_agent_is_started_by_the_next_one(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    (pid,) = cluster.worker_pids("m")
    cluster.agents["node1"].kill()
    os.kill(pid, signal.SIGKILL)
    cluster.start_agent("node1", *cluster.agent_flags)
    wait_until(lambda: cluster.worker_pids("m") not in ([], [pid]), "another worker")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)


def test_a_killed_gateway_closes_its_connections_and_takes_up_where_it_was(simulated: MakeCluster):
    cluster = simulated({"m": 20, "n": 20}, devices=2)
    before = cluster.worker_pids("m") + cluster.worker_pids("n")
    plan = cluster.admin.get("/v1/plan")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 50)
        cluster.gateway.kill()
        wait_until(lambda: load.counts()["closed"] >= 8, "every client to notice")
        check_store(cluster)
        cluster.start_gateway()
        wait_for_answers(load, 50)
    assert set(load.counts()) <= {200, 503, "closed"}, load.counts()
    # Running workers are taken over without loading anything.
    wait_until(lambda: cluster.worker_pids("m") + cluster.worker_pids("n") == before, "the workers to be adopted")
    assert cluster.admin.get("/v1/plan")["generation"] == plan["generation"]
    assert all(is_running(pid) for pid in before)


def test_requests_wait_for_a_gateway_that_starts_again(simulated: MakeCluster):
    cluster = simulated({"m": 20}, slo_ms=10_000)
    cluster.gateway.kill()
    # It listens, and need not have connected to the worker yet.
    cluster.start_gateway()
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 50)
    assert set(load.counts()) == {200}, load.counts()


def test_a_hang_up_ends_no_program_and_costs_no_request(simulated: MakeCluster):
    cluster = simulated({"m": 20})
    programs = processes_of(cluster.folder)
    assert set(programs.values()) >= {"packhorse-gateway", "packhorse-agent", "packhorse-worker"}
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)
        for pid in programs:
            os.kill(pid, signal.SIGHUP)
        wait_for_answers(load, 100)
    assert load.counts().keys() == {200}, load.counts()
    assert processes_of(cluster.folder) == programs


def check_store(cluster: Cluster) -> None:
    """The database as the dead process left it is sound."""
    database = sqlite3.connect(f"file:{cluster.state / 'packhorse.db'}?mode=ro", uri=True)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    database.close()


def test_gateway_and_agent_killed_together_take_up_the_same_workers(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    before = cluster.worker_pids("m")
    cluster.gateway.kill()
    cluster.agents["node1"].kill()
    assert all(is_running(pid) for pid in before)
    cluster.start_gateway()
    cluster.start_agent("node1", *cluster.agent_flags)
    cluster.admin.wait_for_state("m", "ready")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)
    assert cluster.worker_pids("m") == before


def test_after_a_power_failure_everything_comes_back(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    for pid in processes_of(cluster.folder):
        os.kill(pid, signal.SIGKILL)
    cluster.gateway.popen.wait(10)
    cluster.agents["node1"].popen.wait(10)
    cluster.start_gateway()
    cluster.start_agent("node1", *cluster.agent_flags)
    cluster.admin.wait_for_state("m", "ready")
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)
    check_refusals_only(load)


@pytest.mark.parametrize("attempt", range(5))
def test_what_was_acknowledged_outlives_a_kill_right_after(new_cluster: MakeCluster, attempt: int):
    cluster = new_cluster()
    registered = [f"m{number}" for number in range(attempt + 1)]
    for name in registered:
        cluster.admin.register(models.simulated(name, slo_ms=1000 + attempt), name.encode())
    cluster.gateway.kill()
    check_store(cluster)
    cluster.start_gateway()
    views = {view["name"]: view for view in cluster.admin.get("/v1/models")}
    assert sorted(views) == registered
    for name in registered:
        assert views[name]["slo_ms"] == 1000 + attempt
        digest = views[name]["artifact"]
        artifact = request(
            cluster.admin_address, "GET", f"/v1/artifacts/{digest}", headers={"authorization": f"Bearer {cluster.agent_token}"}
        )
        assert artifact.body == name.encode()


def test_the_models_of_a_lost_node_move_to_another(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    flags = simulated_devices(cluster, {"m": 10})
    cluster.start_agent("node2", *flags)
    (replica,) = cluster.admin.get("/v1/models/m")["replicas"]
    assert replica["device"].startswith("node1/")
    cluster.agents["node1"].kill()
    os.kill(replica["pid"], signal.SIGKILL)
    with Load(cluster.inference, "m") as load:
        wait_for_answers(load, 20)
    check_refusals_only(load)
    (moved,) = [r for r in cluster.admin.get("/v1/models/m")["replicas"] if r["serving"]]
    assert moved["device"].startswith("node2/")


def test_a_stopped_worker_hangs_no_request(simulated: MakeCluster):
    """SIGSTOP: the process is there, its connection is open, and nothing comes."""
    cluster = simulated({"m": 10}, "--batch-limit-ms", "3000", slo_ms=2000)
    (pid,) = cluster.worker_pids("m")
    with Load(cluster.inference, "m", clients=4) as load:
        wait_for_answers(load, 10)
        os.kill(pid, signal.SIGSTOP)
        try:
            # What waits is refused at its deadline; what the worker has, when the gateway gives it up.
            wait_until(lambda: len(load.outcomes) - load.answered() >= 4, "every client to be refused", limit=HANGS)
        finally:
            os.kill(pid, signal.SIGCONT)
    check_refusals_only(load)
