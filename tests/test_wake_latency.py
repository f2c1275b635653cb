"""The limit of the cores' wake latency (`--wake-latency-us`), as Linux has it."""

import os
import struct
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from http_admin import request

FILE = Path("/dev/cpu_dma_latency")

pytestmark = pytest.mark.skipif(not os.access(FILE, os.R_OK | os.W_OK), reason=f"this user may not read and write {FILE}")


def limit_us() -> int:
    """The lowest limit that any process has asked for."""
    with FILE.open("rb", buffering=0) as file:
        return struct.unpack("i", file.read(4))[0]


def test_the_limit_holds_while_inference_requests_come(tmp_path: Path):
    others = limit_us()
    if others == 0:
        pytest.skip("the cores of this machine do not sleep")
    limit = min(7, others - 1)
    cluster = Cluster(tmp_path, "--wake-latency-us", str(limit))
    try:

        def infer_and_look() -> int:
            assert request(cluster.inference, "POST", "/v2/models/none/infer", b"{}").status == 404
            return limit_us()

        assert request(cluster.inference, "GET", "/v2/health/live").status == 200
        assert limit_us() == others, "a health check wakes no cores"
        for _ in range(2):
            wait_until(lambda: infer_and_look() == limit, "the limit to hold")
            wait_until(lambda: limit_us() == others, "the limit to end after the last request")
        infer_and_look()
    finally:
        cluster.close()
    assert limit_us() == others, "the limit ends with the gateway"
