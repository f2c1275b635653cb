"""Attacks on one model: another one is served, health is answered, and memory stays within its budget. How fast, `isolation.py` measures."""

import time

import pytest
from cluster import Cluster, wait_until
from hostile import ATTACKS, MemoryWatch, Victim, attack, tuple_address
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
