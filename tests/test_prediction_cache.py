"""The cache of predictions: what was answered before is answered again, to the bit and without a batch, until another program answers."""

from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest
import torch
import triton_clients
import tritonclient.grpc as grpc_client
from cluster import Cluster
from http_admin import request
from tritonclient.utils import np_to_triton_dtype

NAME = "convolutions"
IMAGE = np.random.default_rng(5).standard_normal((2, 3, 32, 32), dtype=np.float32)


def register(cluster: Cluster, model: models.Model, query: str = "", **more) -> None:
    artifact = cluster.admin.upload(model.file.read_bytes())
    registered = cluster.admin.call("POST", f"/v1/models{query}", model.registration | {"artifact": artifact} | more)
    assert registered.status in (200, 201), registered
    version = more.get("version", 1)
    cluster.admin.wait_for_state(f"{NAME}?version={version}", "ready", limit=180)


@pytest.fixture
def cluster(new_cluster: Callable[..., Cluster], tmp_path: Path) -> Cluster:
    """A network with a cache."""
    cluster = new_cluster()
    cluster.start_agent("node1", "--devices", "cpu")
    register(cluster, models.convolutions(tmp_path), cache=True)
    return cluster


def ask(cluster: Cluster, image: np.ndarray = IMAGE, binary: bool = True, version: str = "") -> tuple[bytes, str | None]:
    """The logits, and what the cache had."""
    client = triton_clients.connect("sync", cluster.inference)
    body, length = client.generate_request_body(triton_clients.tensors({"image": image}, binary))
    headers = {"Inference-Header-Content-Length": str(length)} if length else {}
    path = f"/v2/models/{NAME}{f'/versions/{version}' if version else ''}/infer"
    answer = request(cluster.inference, "POST", path, body, headers)
    assert answer.status == 200, answer
    length = answer.headers.get("inference-header-content-length")
    parsed = client.parse_response_body(answer.body, header_length=int(length) if length else None)
    return parsed.as_numpy("logits").tobytes(), answer.headers.get("x-packhorse-cache")


def statistics(cluster: Cluster) -> dict[str, int]:
    client = triton_clients.connect("sync", cluster.inference)
    (stats,) = client.get_inference_statistics(NAME, "1")["model_stats"]
    counts = {stage: stats["inference_stats"][stage]["count"] for stage in ("success", "queue", "compute_infer", "cache_hit", "cache_miss")}
    return counts | {"batches": stats["execution_count"], "rows": stats["inference_count"]}


def test_a_hit_is_the_same_to_the_bit_and_no_device_computes_it(cluster: Cluster):
    first, cache = ask(cluster)
    assert cache == "miss"
    for binary in (True, False, True):
        assert ask(cluster, binary=binary) == (first, "hit")
    changed = IMAGE.copy()
    changed[1, 2, 31, 31] = np.nextafter(changed[1, 2, 31, 31], np.float32(9))
    other, cache = ask(cluster, changed)
    assert cache == "miss"
    assert ask(cluster, changed) == (other, "hit")
    assert statistics(cluster) == {"success": 6, "queue": 2, "compute_infer": 2, "cache_hit": 4, "cache_miss": 2, "batches": 2, "rows": 4}
    labels = {"model": NAME, "version": "1"}
    assert cluster.admin.metric("nv_cache_num_hits_per_model", **labels) == 4
    assert cluster.admin.metric("packhorse_slo_met_total", **labels) == 2
    requests = cluster.admin.get("/v1/requests")
    assert [(ended["cache"], ended["batch"] is None) for ended in requests] == [("hit", True), ("miss", False), *3 * [("hit", True)], ("miss", False)]


def test_grpc_and_http_share_answers_and_tritonclient_sees_the_hits(cluster: Cluster):
    first, _ = ask(cluster)
    client = grpc_client.InferenceServerClient(cluster.grpc)
    image = grpc_client.InferInput("image", list(IMAGE.shape), np_to_triton_dtype(IMAGE.dtype))
    image.set_data_from_numpy(IMAGE)
    assert client.infer(NAME, [image]).as_numpy("logits").tobytes() == first
    best = client.infer(NAME, [image], outputs=[grpc_client.InferRequestedOutput("logits", class_count=1)]).as_numpy("logits")
    logits = np.frombuffer(first, np.float32).reshape(2, 10)
    assert [int(text.decode().split(":")[1]) for text in best.ravel()] == logits.argmax(1).tolist()
    stats = client.get_inference_statistics(NAME, "1").model_stats[0].inference_stats
    assert (stats.cache_hit.count, stats.cache_miss.count, stats.success.count) == (2, 1, 3)
    assert stats.cache_hit.ns > 0
    client.close()


def test_another_program_never_answers_as_the_one_before_it(cluster: Cluster, tmp_path: Path):
    first, _ = ask(cluster)
    assert ask(cluster) == (first, "hit")
    torch.manual_seed(8)
    other = models.make(tmp_path, models.Convolutions(), models.convolutions(tmp_path).registration | {"version": 2})
    expected = other.answer(torch.from_numpy(IMAGE)).numpy()

    register(cluster, other, version=2, cache=True)
    second, cache = ask(cluster, version="2")
    assert cache == "miss"
    np.testing.assert_allclose(np.frombuffer(second, np.float32).reshape(2, 10), expected, atol=1e-5, rtol=1e-5)
    assert ask(cluster, version="1") == (first, "hit"), "the first version is still there"

    register(cluster, other, "?replace=true", version=1, cache=True)
    replaced, cache = ask(cluster, version="1")
    assert cache == "miss"
    np.testing.assert_allclose(np.frombuffer(replaced, np.float32).reshape(2, 10), expected, atol=1e-5, rtol=1e-5)


def test_a_cache_is_off_until_it_is_switched_on_and_can_be_switched_off(new_cluster: Callable[..., Cluster], tmp_path: Path):
    cluster = new_cluster()
    cluster.start_agent("node1", "--devices", "cpu")
    register(cluster, models.convolutions(tmp_path))
    answers = [ask(cluster) for _ in range(2)]
    assert [cache for _, cache in answers] == [None, None]
    for cache, expected in ((True, ["miss", "hit"]), (False, [None, None])):
        assert cluster.admin.call("PATCH", f"/v1/models/{NAME}", {"cache": cache}).json()["cache"] is cache
        assert [ask(cluster)[1] for _ in range(2)] == expected
