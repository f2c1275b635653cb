"""Attacks on one model: another one is served, health is answered, and memory stays within its budget. How fast, `isolation.py` measures."""

import os
import time
from pathlib import Path

import models
import pytest
from cluster import PROGRAMS, Cluster, wait_until
from conftest import simulated_devices
from hostile import ATTACKS, SMALL, MemoryWatch, Victim, attack, many, tuple_address
from http_admin import request
from isolation import BUDGET, isolation_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    cluster = isolation_cluster(tmp_path_factory.mktemp("isolation"))
    yield cluster
    cluster.close()


@pytest.mark.parametrize("work", ATTACKS.values(), ids=lambda work: work.__name__)
def test_an_attack_on_one_model_leaves_the_others_alone(cluster: Cluster, work):
    address = tuple_address(cluster.inference)
    victim = Victim(address, "victim", 50)
    with attack(work, address), MemoryWatch(cluster.gateway.pid) as memory, victim:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            assert request(cluster.inference, "GET", "/v2/health/live", limit=10).status == 200
            assert request(cluster.inference, "GET", "/v2/health/ready", limit=10).status == 200
            time.sleep(0.1)
    assert len(victim.statuses) > 20
    assert set(victim.statuses) == {200}
    assert memory.largest < BUDGET + (100 << 20)
    wait_until(lambda: cluster.admin.metric("packhorse_memory_used_bytes") == 0, "the memory to be released")


def limited_programs(folder: Path, ulimit: str) -> Path:
    """The programs, with a gateway that starts with other limits."""
    folder.mkdir()
    for program in ("packhorse-agent", "packhorse-worker"):
        (folder / program).symlink_to((PROGRAMS / program).absolute())
    gateway = folder / "packhorse-gateway"
    gateway.write_text(f'#!/bin/sh\nulimit {ulimit}\nexec {(PROGRAMS / "packhorse-gateway").absolute()} "$@"\n')
    gateway.chmod(0o755)
    return folder


@pytest.mark.parametrize("ulimit", ["-S -n 256", "-n 256"], ids=["soft limit", "hard limit"])
def test_300_silent_clients_do_not_take_the_descriptors_of_links(tmp_path: Path, monkeypatch, ulimit: str):
    monkeypatch.setattr("cluster.PROGRAMS", limited_programs(tmp_path / "programs", ulimit))
    cluster = Cluster(tmp_path, "--client-timeout-ms", "2000")
    try:
        address = tuple_address(cluster.inference)
        with attack(silent, address):
            wait_until(lambda: len(os.listdir(f"/proc/{cluster.gateway.pid}/fd")) > 100, "the silent clients")
            # The agent, the store and the link to the worker get their descriptors.
            cluster.start_agent("node1", *simulated_devices(cluster, {"m": 1.0}))
            cluster.admin.register(models.simulated("m"), b"the file of m")
            cluster.admin.wait_for_state("m", "ready")
            assert request(cluster.inference, "GET", "/v2/health/ready").status == 200
        answered = lambda: request(cluster.inference, "POST", "/v2/models/m/infer", SMALL).status == 200
        wait_until(answered, "an answer")
        assert "file descriptors" in cluster.gateway.said()
    finally:
        cluster.close()


def silent(address):
    many(address, 300, b"", None, 0.1)
