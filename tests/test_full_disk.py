"""A gateway whose disk is full: what it answers 201 is there after it was killed, and what it refuses is not."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from cluster import Cluster
from conftest import fill

STATE_BYTES = 8 << 20
# The most keys that are made on a full disk.
MOST_KEYS = 400


def key(name: str) -> dict:
    return {"name": name, "scopes": ["read"]}


def names(cluster: Cluster) -> set[str]:
    return {key["name"] for key in cluster.admin.get("/v1/keys")}


def test_no_acknowledged_key_is_lost_by_a_full_disk(small_disk: Callable[[Path, int], None], tmp_path: Path):
    small_disk(tmp_path / "gateway", STATE_BYTES)
    with closing(Cluster(tmp_path)) as cluster:
        check(cluster)


def check(cluster: Cluster) -> None:
    def create(name: str) -> int:
        answer = cluster.admin.call("POST", "/v1/keys", key(name))
        if answer.status == 507:
            assert answer.error == "no space is left on the disk of the database"
        return answer.status

    deleted = cluster.admin.call("POST", "/v1/keys", key("deleted")).json()
    assert create("before") == 201
    for turn in range(3):
        filler = fill(cluster.state)
        # The log of the database has some room of its own.
        refused = []
        while len(refused) < MOST_KEYS and refused.count(507) < 3:
            refused.append(create(f"refused {turn} {len(refused)}"))
        assert 507 in refused and set(refused) <= {201, 507}, refused
        acknowledged = {f"refused {turn} {number}" for number, status in enumerate(refused) if status == 201}
        assert acknowledged <= names(cluster)
        filler.unlink()
        # There is room again, and no restart.
        assert create(f"after {turn}") == 201
    assert cluster.admin.call("DELETE", f"/v1/keys/{deleted['id']}").status == 204
    before = names(cluster)
    assert {"before", "after 0", "after 1", "after 2"} <= before and "deleted" not in before
    cluster.gateway.kill()
    cluster.start_gateway()
    assert names(cluster) == before
