"""A gateway takes over what version 0.1.0 has stored, and refuses what a newer one has.

`data/v0.1.0.sql` is the dump of a database that the gateway of version 0.1.0 wrote: models "cat" (versions 1 and 2) and "dog" (rate and
SLO changed after its registration) on two simulated devices of node "node1", which is cordoned, under the policy `first-fit` with the
discipline `fixed-wait`. The programs were built from commit b159ad0, whose tables are those of the release.
"""

import hashlib
import sqlite3
import subprocess
from pathlib import Path

from cluster import PROGRAMS, Cluster
from conftest import simulated_devices

DUMP = Path(__file__).parent / "data/v0.1.0.sql"
FILES = {"cat:1": b"the file of cat", "cat:2": b"the file of cat, again", "dog:1": b"the file of dog"}


def store_of_the_first_release(state: Path) -> None:
    """Makes a state folder with the database of version 0.1.0 and the artifacts that its models have."""
    state.mkdir(mode=0o700)
    with sqlite3.connect(state / "packhorse.db") as database:
        database.executescript(DUMP.read_text())
    (state / "artifacts").mkdir()
    for data in FILES.values():
        (state / "artifacts" / hashlib.sha256(data).hexdigest()).write_bytes(data)


def test_a_gateway_serves_what_the_first_release_has_stored(tmp_path):
    store_of_the_first_release(tmp_path / "gateway")
    cluster = Cluster(tmp_path)
    try:
        views = {f"{view['name']}:{view['version']}": view for view in cluster.admin.get("/v1/models")}
        assert views.keys() == FILES.keys()
        assert (views["dog:1"]["rate_rps"], views["dog:1"]["slo_ms"]) == (25, 150)
        assert views["cat:2"]["max_batch_size"] == 8
        policy = cluster.admin.get("/v1/policy")
        assert (policy["policy"], policy["discipline"]) == ("first-fit", "fixed-wait")
        (node,) = cluster.admin.get("/v1/nodes")
        assert (node["name"], len(node["devices"])) == ("node1", 2)
        assert cluster.admin.get("/v1/plan")["generation"] >= 1
        cluster.start_agent("node1", *simulated_devices(cluster, {"cat": 20, "cat:2": 22, "dog": 30}, devices=2))
        (node,) = cluster.admin.get("/v1/nodes")
        assert node["state"] == "cordoned"
        assert cluster.admin.call("POST", "/v1/nodes/node1/uncordon").status == 200
        for name in ("cat", "dog"):
            cluster.admin.wait_for_state(name, "ready")
        # What later versions added works on the old rows, too.
        assert cluster.admin.call("PATCH", "/v1/models/dog", {"rate": "measured", "queue_limit": 5}).status == 200
    finally:
        cluster.close()


def test_a_gateway_refuses_the_database_of_a_newer_version(tmp_path):
    state = tmp_path / "gateway"
    store_of_the_first_release(state)
    with sqlite3.connect(state / "packhorse.db") as database:
        database.execute("INSERT INTO _sqlx_migrations SELECT 9999, description, installed_on, success, checksum, execution_time FROM _sqlx_migrations LIMIT 1")
    done = subprocess.run(
        [PROGRAMS / "packhorse-gateway", "--state-dir", state, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "it may have been written by a newer one" in done.stdout + done.stderr
