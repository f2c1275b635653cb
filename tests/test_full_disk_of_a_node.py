"""A node whose disk is full: what cannot be written is written later, and said meanwhile."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import models
from cluster import Cluster, wait_until
from conftest import fill, simulated_devices

STATE_BYTES = 16 << 20


def finding_about(cluster: Cluster, words: str) -> dict | None:
    findings = [finding for finding in cluster.admin.get("/v1/findings") if words in (finding["cause"] or "")]
    return findings[0] if findings else None


def test_a_worker_that_dies_while_the_disk_is_full_is_a_finding_and_serves_when_there_is_room(
    new_cluster: Callable[..., Cluster], small_disk: Callable[[Path, int], None]
):
    cluster = new_cluster()
    folder = cluster.folder / "node1"
    small_disk(folder, STATE_BYTES)
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
