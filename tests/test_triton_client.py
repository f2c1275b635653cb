"""What users of the unmodified `tritonclient` do, both its kinds: `client` is the sync one, then the asyncio one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import triton_clients
from conftest import Served
from tritonclient.utils import InferenceServerException

BINARY = pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
GENERATOR = np.random.default_rng(1)


@pytest.fixture(scope="module", autouse=True)
def two_versions(served: Served) -> None:
    """Has "sum-and-difference" a second version from here on: the first one is retired ten minutes later, earlier than all tests have ended."""
    served.add_version()


def ask(client, model: str, inputs: dict[str, np.ndarray], wanted: list[str], binary: bool = True, **more):
    """The outputs of a request, as arrays."""
    given = triton_clients.tensors(inputs, binary)
    result = client.infer(model, given, outputs=triton_clients.outputs(wanted, binary), **more)
    return [result.as_numpy(name) for name in wanted]


def pair(rows: int = 2) -> dict[str, np.ndarray]:
    """Inputs for `sum-and-difference`."""
    return {name: GENERATOR.standard_normal((rows, 16), dtype=np.float32) for name in "ab"}


def test_the_server_is_live_and_ready_and_says_what_it_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata()
    assert metadata["name"] == "packhorse"
    assert metadata["version"]
    supported = {"binary_tensor_data", "model_configuration", "statistics", "system_shared_memory"}
    assert supported <= set(metadata["extensions"])
    absent = {"cuda_shared_memory", "sequence", "trace", "logging"}
    assert not absent & set(metadata["extensions"]), "only what works is advertised"


def test_metadata_is_what_was_registered(client, served: Served):
    registered = served.models["convolutions"].registration
    metadata = client.get_model_metadata("convolutions")
    assert metadata["name"] == "convolutions"
    assert metadata["versions"] == ["1"]
    assert metadata["platform"]
    assert metadata["inputs"] == registered["inputs"]
    assert metadata["outputs"] == registered["outputs"]
    assert client.get_model_metadata("convolutions", "1")["inputs"] == registered["inputs"]
    assert client.get_model_metadata("sum-and-difference")["versions"] == ["1", "2"]


def test_the_configuration_has_what_performance_tools_read(client):
    config = client.get_model_config("convolutions")
    assert config["name"] == "convolutions"
    assert config["platform"]
    assert config["max_batch_size"] == 8
    (given,) = config["input"]
    assert (given["name"], given["data_type"], [int(d) for d in given["dims"]]) == ("image", "TYPE_FP32", [3, 32, 32])
    (made,) = config["output"]
    assert (made["name"], made["data_type"], [int(d) for d in made["dims"]]) == ("logits", "TYPE_FP32", [10])


def test_readiness_is_told_per_model_and_version(client):
    assert client.is_model_ready("convolutions")
    assert client.is_model_ready("sum-and-difference", "2")
    assert not client.is_model_ready("sum-and-difference", "3")
    assert not client.is_model_ready("unheard-of")


def test_the_repository_index_lists_every_version(client, served: Served):
    index = {(entry["name"], entry["version"]): entry["state"] for entry in client.get_model_repository_index()}
    assert index[("sum-and-difference", "1")] == "READY"
    assert index[("sum-and-difference", "2")] == "READY"
    assert {name for name, _ in index} >= set(served.models)


def test_statistics_count_what_was_answered(client):
    def counts():
        (stats,) = client.get_inference_statistics("double", "1")["model_stats"]
        assert (stats["name"], stats["version"]) == ("double", "1")
        return stats

    before = counts()
    for _ in range(3):
        ask(client, "double", {"x": np.ones((2, 3), np.float32)}, ["y"])
    after = counts()
    assert after["inference_count"] - before["inference_count"] == 6, "rows"
    assert after["execution_count"] - before["execution_count"] == 3, "batches"
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    for stage in ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]:
        duration = after["inference_stats"][stage]
        assert isinstance(duration["count"], int) and isinstance(duration["ns"], int) and duration["ns"] >= 0
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]
    everything = client.get_inference_statistics()["model_stats"]
    assert {"convolutions", "double"} <= {stats["name"] for stats in everything}


def test_statistics_count_what_failed(client):
    def failures() -> int:
        (stats,) = client.get_inference_statistics("moody")["model_stats"]
        return stats["inference_stats"]["fail"]["count"]

    before = failures()
    with pytest.raises(InferenceServerException) as failed:
        ask(client, "moody", {"x": np.full((1, 1), -1, np.float32)}, ["y"])
    assert failed.value.status() == "500"
    assert "told to throw" in failed.value.message()
    assert failures() - before == 1


@BINARY
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_a_network_answers_as_pytorch_does(client, served: Served, binary: bool, rows: int):
    image = GENERATOR.standard_normal((rows, 3, 32, 32), dtype=np.float32)
    (logits,) = ask(client, "convolutions", {"image": image}, ["logits"], binary)
    expected = served.models["convolutions"].answer(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-5)


@BINARY
def test_outputs_come_under_their_names_in_any_order(client, binary: bool):
    inputs = pair()
    difference, total = ask(client, "sum-and-difference", inputs, ["difference", "sum"], binary)
    np.testing.assert_array_equal(total, inputs["a"] + inputs["b"])
    np.testing.assert_array_equal(difference, inputs["a"] - inputs["b"])
    backwards = dict(reversed(inputs.items()))
    (total,) = ask(client, "sum-and-difference", backwards, ["sum"], binary)
    np.testing.assert_array_equal(total, inputs["a"] + inputs["b"])


def test_only_the_outputs_asked_for_come_and_all_of_them_when_none_is(client):
    result = client.infer("sum-and-difference", triton_clients.tensors(pair()), outputs=triton_clients.outputs(["sum"]))
    assert result.as_numpy("difference") is None
    result = client.infer("sum-and-difference", triton_clients.tensors(pair()))
    assert {output["name"] for output in result.get_response()["outputs"]} == {"sum", "difference"}


@pytest.mark.parametrize("request_binary", [True, False])
@pytest.mark.parametrize("response_binary", [True, False])
def test_each_direction_has_its_own_encoding(client, request_binary: bool, response_binary: bool):
    inputs = pair()
    wanted = triton_clients.outputs(["sum"], response_binary)
    result = client.infer("sum-and-difference", triton_clients.tensors(inputs, request_binary), outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("sum"), inputs["a"] + inputs["b"])
    parameters = result.get_output("sum").get("parameters", {})
    assert ("binary_data_size" in parameters) == response_binary
    assert ("data" in result.get_output("sum")) != response_binary


def test_the_answer_names_request_model_and_version(client):
    result = client.infer("sum-and-difference", triton_clients.tensors(pair()), request_id="frühling-7").get_response()
    assert result["id"] == "frühling-7"
    assert result["model_name"] == "sum-and-difference"
    assert result["model_version"] == "2", "without a version, the newest answers"
    result = client.infer("sum-and-difference", triton_clients.tensors(pair()), model_version="1").get_response()
    assert result["model_version"] == "1"
    assert "id" not in result


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@BINARY
def test_compressed_requests_and_answers(client, algorithm: str, binary: bool):
    inputs = pair(8)
    (total,) = ask(
        client,
        "sum-and-difference",
        inputs,
        ["sum"],
        binary,
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(total, inputs["a"] + inputs["b"])


def test_priority_and_timeout_are_taken(client):
    inputs = pair()
    (total,) = ask(client, "sum-and-difference", inputs, ["sum"], priority=1, timeout=30_000_000)
    np.testing.assert_array_equal(total, inputs["a"] + inputs["b"])


@BINARY
@pytest.mark.parametrize("length", [1, 7, 300])
def test_variable_dimensions(client, binary: bool, length: int):
    x = GENERATOR.integers(-9, 9, (3, length)).astype(np.float32)
    (doubled,) = ask(client, "double", {"x": x}, ["y"], binary)
    np.testing.assert_array_equal(doubled, 2 * x)
    (total,) = ask(client, "sum-of-row", {"x": x}, ["sum"], binary)
    np.testing.assert_array_equal(total, x.sum(1, keepdims=True))


@BINARY
def test_a_model_without_batch_dimension(client, binary: bool):
    x = np.array([3, -(2**62), 2**61], np.int64)
    (doubled,) = ask(client, "without-batch", {"x": x}, ["y"], binary)
    np.testing.assert_array_equal(doubled, 2 * x)


@pytest.mark.parametrize("model", ["double", "sum-of-row"])
def test_every_request_of_a_crowd_gets_its_own_rows(served: Served, model: str):
    """Requests of different sizes and lengths, all at once: they are batched, padded, split, and never mixed up."""
    clients = [triton_clients.sync_client.InferenceServerClient(served.address) for _ in range(16)]

    def one(number: int) -> None:
        x = np.full((1 + number % 3, 1 + number % 5), number, np.float32)
        (answer,) = ask(clients[number % 16], model, {"x": x}, ["y" if model == "double" else "sum"])
        expected = 2 * x if model == "double" else x.sum(1, keepdims=True)
        np.testing.assert_array_equal(answer, expected)

    def some(worker: int) -> None:
        for number in range(worker, 320, 16):
            one(number)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(some, range(16)))
    for client in clients:
        client.close()


def test_a_crowd_shares_batches_and_each_gets_what_pytorch_answers(served: Served):
    rows = [GENERATOR.standard_normal((1, 256), dtype=np.float32) for _ in range(64)]

    async def crowd() -> list:
        async with triton_clients.asyncio_client.InferenceServerClient(served.address) as client:
            return await asyncio.gather(*(client.infer("slow", triton_clients.tensors({"x": x})) for x in rows))

    labels = {"model": "slow", "version": "1"}
    rows_before = served.admin.metric("nv_inference_count", **labels)
    batches_before = served.admin.metric("nv_inference_exec_count", **labels)
    results = asyncio.run(crowd())
    for x, result in zip(rows, results, strict=True):
        expected = served.models["slow"].answer(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(result.as_numpy("y"), expected, atol=1e-5, rtol=1e-5)
    assert served.admin.metric("nv_inference_count", **labels) - rows_before == 64
    assert served.admin.metric("nv_inference_exec_count", **labels) - batches_before <= 48, "requests shared batches"


@BINARY
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": np.zeros((2, 16), np.float32)}, "b"),
        ({**pair(), "c": np.zeros((2, 16), np.float32)}, "c"),
        ({"a": np.zeros((2, 15), np.float32), "b": np.zeros((2, 16), np.float32)}, "shape"),
        ({"a": np.zeros((16,), np.float32), "b": np.zeros((2, 16), np.float32)}, "shape"),
        ({"a": np.zeros((2, 16), np.float64), "b": np.zeros((2, 16), np.float32)}, "FP64"),
        ({"a": np.zeros((2, 16), np.float32), "b": np.zeros((3, 16), np.float32)}, "rows"),
        ({"a": np.zeros((9, 16), np.float32), "b": np.zeros((9, 16), np.float32)}, "8"),
        ({"a": np.zeros((0, 16), np.float32), "b": np.zeros((0, 16), np.float32)}, "batch"),
    ],
    ids=["missing", "extra", "shape", "rank", "datatype", "unequal rows", "over the maximum", "empty batch"],
)
def test_a_request_unlike_the_signature_is_refused_by_name(client, binary: bool, inputs, message: str):
    with pytest.raises(InferenceServerException) as refused:
        ask(client, "sum-and-difference", inputs, ["sum"], binary)
    assert refused.value.status() == "400"
    assert message in refused.value.message()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.infer("unheard-of", triton_clients.tensors(pair())),
        lambda client: client.infer("sum-and-difference", triton_clients.tensors(pair()), model_version="9"),
        lambda client: client.get_model_metadata("unheard-of"),
        lambda client: client.get_model_config("unheard-of"),
        lambda client: client.get_model_metadata("sum-and-difference", "9"),
        lambda client: client.get_inference_statistics("unheard-of"),
    ],
    ids=["infer", "infer version", "metadata", "config", "metadata version", "statistics"],
)
def test_unknown_models_and_versions_are_said_to_be_unknown(client, call):
    with pytest.raises(InferenceServerException) as refused:
        call(client)
    assert refused.value.status() == "404"
    assert "unheard-of" in refused.value.message() or "9" in refused.value.message()
