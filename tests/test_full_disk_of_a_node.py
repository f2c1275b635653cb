"""A node whose disk is full: what cannot be written is written later, and said meanwhile."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
from cluster import Cluster, wait_until
from conftest import simulated_devices

STATE_BYTES = 16 << 20


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], Path]]:
    """Mounts a small file system as the state folder of a node."""
    mounted: list[Path] = []

    def mount(folder: Path) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={STATE_BYTES},mode=700", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this user may not mount")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all room of a file system."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return file


def finding_about(cluster: Cluster, words: str) -> dict | None:
    findings = [finding for finding in cluster.admin.get("/v1/findings") if words in (finding["cause"] or "")]
    return findings[0] if findings else None


def test_a_worker_that_dies_while_the_disk_is_full_is_a_finding_and_serves_when_there_is_room(
    new_cluster: Callable[..., Cluster], small_disk: Callable[[Path], Path]
):
    cluster = new_cluster()
    folder = small_disk(cluster.folder / "node1")
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": 5}))
    cluster.admin.register(models.simulated("m"), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")
    filler = fill(folder)
    for worker in cluster.worker_pids("m"):
        os.kill(worker, signal.SIGKILL)
    finding = wait_until(lambda: finding_about(cluster, "No space left on device"), "the finding", limit=60)
    assert finding["text"] == "model m:1 does not start on node1/sim0"
    os.unlink(filler)
    cluster.admin.wait_for_state("m", "ready")
    wait_until(lambda: not cluster.admin.get("/v1/findings"), "the finding to be over", limit=60)
