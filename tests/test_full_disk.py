"""A gateway whose disk is full: what it answers 201 is there after it was killed, and what it refuses is not."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Cluster]:
    """A gateway on a disk of 8 MiB."""
    state = tmp_path / "gateway"
    state.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(state)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(mounted.stderr.strip())
    try:
        cluster = Cluster(tmp_path)
        yield cluster
        cluster.close()
    finally:
        subprocess.run(["umount", "--lazy", str(state)], check=True)


# The most keys that are made on a full disk.
MOST_KEYS = 400


def key(name: str) -> dict:
    return {"name": name, "scopes": ["read"]}


def names(cluster: Cluster) -> set[str]:
    return {key["name"] for key in cluster.admin.get("/v1/keys")}


def test_no_acknowledged_key_is_lost_by_a_full_disk(small_disk: Cluster) -> None:
    def create(name: str) -> int:
        answer = small_disk.admin.call("POST", "/v1/keys", key(name))
        if answer.status == 507:
            assert answer.error == "no space is left on the disk of the database"
        return answer.status

    deleted = small_disk.admin.call("POST", "/v1/keys", key("deleted")).json()
    assert create("before") == 201
    filler = small_disk.state / "filler"
    for turn in range(3):
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        # The log of the database has some room of its own.
        refused = []
        while len(refused) < MOST_KEYS and refused.count(507) < 3:
            refused.append(create(f"refused {turn} {len(refused)}"))
        assert 507 in refused and set(refused) <= {201, 507}, refused
        acknowledged = {f"refused {turn} {number}" for number, status in enumerate(refused) if status == 201}
        assert acknowledged <= names(small_disk)
        filler.unlink()
        # There is room again, and no restart.
        assert create(f"after {turn}") == 201
    assert small_disk.admin.call("DELETE", f"/v1/keys/{deleted['id']}").status == 204
    before = names(small_disk)
    assert {"before", "after 0", "after 1", "after 2"} <= before and "deleted" not in before
    small_disk.gateway.kill()
    small_disk.start_gateway()
    assert names(small_disk) == before
