"""A gateway whose state is in PostgreSQL: it serves while the database is away, goes on when it is back, and moves between engines."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import models
import pytest
from cluster import PROGRAMS, Cluster, wait_until
from conftest import simulated_devices
from load import Load
from postgres import Postgres

AWAY_SECONDS = 5


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with closing(Postgres()) as server:
        yield server


def serve(cluster: Cluster, *names: str) -> None:
    """Starts an agent with simulated devices, and registers models that it serves."""
    cluster.start_agent("node1", *simulated_devices(cluster, {name: 5 for name in names}, devices=2))
    for name in names:
        cluster.admin.register(models.simulated(name, rate_rps=50), name.encode())
    for name in names:
        cluster.admin.wait_for_state(name, "ready")


def answers(cluster: Cluster, model: str, at_least: int = 50) -> None:
    """Checks that this many requests are answered, and all of them."""
    with Load(cluster.inference, model, clients=2) as load:
        wait_until(lambda: load.counts().total() >= at_least, "answers")
    assert load.counts().keys() == {200}, load.counts()


def key(name: str) -> dict:
    return {"name": name, "scopes": ["read"]}


def key_names(cluster: Cluster) -> set[str]:
    return {key["name"] for key in cluster.admin.get("/v1/keys")}


def migrate(source: str, target: str) -> subprocess.CompletedProcess:
    arguments = [PROGRAMS / "packhorse", "store", "migrate", "--from", source, "--to", target]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


def test_requests_are_answered_and_changes_refused_while_the_database_is_away(postgres: Postgres, tmp_path: Path):
    url = postgres.database("away")
    with closing(Cluster(tmp_path, "--store", url)) as cluster:
        serve(cluster, "m", "n")
        assert not (cluster.state / "packhorse.db").exists()
        assert postgres.ask("away", "SELECT COUNT(*) FROM models") == "2"
        assert cluster.admin.call("POST", "/v1/keys", key("before")).status == 201
        acknowledged, refused = {"before"}, []
        with Load(cluster.inference, "m", clients=4) as load:
            wait_until(lambda: load.counts().total() >= 100, "answers before")
            postgres.crash()
            end = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < end:
                name = f"refused {len(refused)}"
                began = time.monotonic()
                answer = cluster.admin.call("POST", "/v1/keys", key(name))
                refused.append(time.monotonic() - began)
                assert answer.status == 503, answer
                assert answer.error.startswith("the database cannot be read or written now"), answer
                changed = cluster.admin.call("PATCH", "/v1/models/n", {"slo_ms": 777})
                assert changed.status == 503, changed
                time.sleep(0.1)
            answered_while_away = load.counts().total()
            postgres.start()
            back = time.monotonic()
            wait_until(lambda: cluster.admin.call("POST", "/v1/keys", key("after")).status == 201, "changes to be stored again")
            took = time.monotonic() - back
            acknowledged.add("after")
            wait_until(lambda: load.counts().total() >= answered_while_away + 100, "answers after")
        counts = load.counts()
        print(f"requests {dict(counts)}; {len(refused)} changes refused, the slowest after {max(refused):.2f} s; stored again {took:.2f} s after the start")
        assert counts.keys() == {200}, counts
        assert len(refused) >= 10
        assert cluster.admin.call("PATCH", "/v1/models/n", {"slo_ms": 777}).status == 200
        # What was acknowledged is there after a restart, and what was refused is not.
        cluster.gateway.kill()
        cluster.start_gateway()
        assert key_names(cluster) == acknowledged
        assert cluster.admin.get("/v1/models/n")["slo_ms"] == 777


def test_a_killed_gateway_serves_again_with_the_same_workers(postgres: Postgres, tmp_path: Path):
    url = postgres.database("killed")
    with closing(Cluster(tmp_path, "--store", url)) as cluster:
        serve(cluster, "m")
        pids = cluster.worker_pids("m")
        plan = cluster.admin.get("/v1/plan")["generation"]
        cluster.gateway.kill()
        cluster.start_gateway()
        cluster.admin.wait_for_state("m", "ready")
        assert cluster.worker_pids("m") == pids and pids
        assert cluster.admin.get("/v1/plan")["generation"] == plan
        assert postgres.ask("killed", "SELECT MAX(epoch) FROM epochs") == "2"
        answers(cluster, "m")


def test_a_second_gateway_is_told_who_holds_the_database(postgres: Postgres, tmp_path: Path):
    url = postgres.database("held")
    with closing(Cluster(tmp_path, "--store", url)) as cluster:
        arguments = [PROGRAMS / "packhorse-gateway", "--state-dir", tmp_path / "second", "--store", url, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        second = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        said = second.stdout + second.stderr
        assert second.returncode != 0
        assert f"is in use by packhorse-gateway on {Path('/proc/sys/kernel/hostname').read_text().strip()[:32]} ({cluster.gateway.pid})" in said, said
        # It has changed nothing of the first.
        assert cluster.admin.call("POST", "/v1/keys", key("first")).status == 201
        backup = cluster.admin.call("GET", "/v1/backup")
        assert backup.status == 501 and "pg_dump" in backup.error, backup


def test_a_gateway_ends_once_another_has_taken_the_database(postgres: Postgres, tmp_path: Path):
    url = postgres.database("taken")
    with closing(Cluster(tmp_path, "--store", url)) as cluster:
        postgres.ask("taken", "UPDATE holder SET id = 'other', name = 'packhorse-gateway on other (1)'")
        refused = cluster.admin.call("POST", "/v1/keys", key("late"))
        assert refused.status == 503 and "another gateway has taken the database" in refused.error, refused
        assert cluster.gateway.popen.wait(30) != 0
        assert "another gateway has taken the database" in cluster.gateway.said()
        assert postgres.ask("taken", "SELECT COUNT(*) FROM keys") == "0"


def test_a_cluster_moves_to_the_other_engine_and_back_without_a_reload(postgres: Postgres, tmp_path: Path):
    first, last = postgres.database("first"), postgres.database("last")
    with closing(Cluster(tmp_path, "--store", first)) as cluster:
        serve(cluster, "m", "n")
        cluster.admin.call("POST", "/v1/keys", key("kept"))
        pids = {name: cluster.worker_pids(name) for name in ("m", "n")}
        file = f"sqlite:{cluster.state / 'packhorse.db'}"
        busy = migrate(first, file)
        assert busy.returncode != 0 and "in use by" in busy.stderr, busy
        for source, target, flags in ((first, file, ()), (file, last, ("--store", last))):
            cluster.gateway.stop()
            moved = migrate(source, target)
            assert moved.returncode == 0, moved
            assert ["models", "2", "rows"] in [line.split() for line in moved.stdout.splitlines()], moved.stdout
            again = migrate(source, target)
            assert again.returncode != 0 and "is not empty" in again.stderr, again
            cluster.gateway_flags = flags
            cluster.start_gateway()
            for name in pids:
                cluster.admin.wait_for_state(name, "ready")
                assert cluster.worker_pids(name) == pids[name], f"{name} was loaded again at {target}"
                answers(cluster, name)
            assert key_names(cluster) == {"kept"}
