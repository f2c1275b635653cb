"""gRPC as users of the unmodified `tritonclient.grpc` see it, beside HTTP: the same answers, refusals and counts."""

import asyncio
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as sync_grpc
import tritonclient.grpc.aio as asyncio_grpc
import triton_clients
from conftest import Served
from google.protobuf import descriptor_pb2
from http_admin import request
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

GENERATOR = np.random.default_rng(1)


class Blocking:
    """The asyncio client, one call at a time."""

    def __init__(self, address: str):
        self.loop = asyncio.new_event_loop()

        async def connect():
            return asyncio_grpc.InferenceServerClient(address)

        self.client = self.loop.run_until_complete(connect())

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *arguments, **named: self.loop.run_until_complete(method(*arguments, **named))


@pytest.fixture(params=["sync", "asyncio"])
def client(request: pytest.FixtureRequest, served: Served):
    """tritonclient.grpc, both kinds."""
    address = served.cluster.grpc
    client = sync_grpc.InferenceServerClient(address) if request.param == "sync" else Blocking(address)
    yield client
    client.close()


@pytest.fixture
def stub(served: Served):
    """The generated messages on a channel, for what tritonclient does not send."""
    with grpc.insecure_channel(served.cluster.grpc) as channel:

        def call(method: str, message, answer, **more):
            make = channel.unary_unary(
                f"/inference.GRPCInferenceService/{method}", type(message).SerializeToString, getattr(service_pb2, answer).FromString
            )
            return make(message, timeout=30, **more)

        yield call


def tensors(inputs: dict[str, np.ndarray]) -> list[sync_grpc.InferInput]:
    made = []
    for name, array in inputs.items():
        tensor = sync_grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def pair(rows: int = 2) -> dict[str, np.ndarray]:
    """Inputs for `sum-and-difference`."""
    return {name: GENERATOR.standard_normal((rows, 16), dtype=np.float32) for name in "ab"}


def by_http(served: Served, model: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the same request over HTTP."""
    with triton_clients.sync_client.InferenceServerClient(served.address) as client:
        result = client.infer(model, triton_clients.tensors(inputs))
        return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def test_the_messages_have_the_protocols_names_and_numbers():
    """Ours are those of tritonclient, but for what the gateway does not offer."""
    ours = descriptor_pb2.FileDescriptorSet()
    ours.ParseFromString((Path(__file__).parent.parent / "crates/grpc/src/generated/descriptors.bin").read_bytes())
    (file,) = [file for file in ours.file if file.name == "inference.proto"]
    theirs = {}
    for module in [service_pb2, model_config_pb2]:
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        theirs |= {message.name: message for message in proto.message_type}
        theirs |= {enum.name: enum for enum in proto.enum_type}
        theirs |= {service.name: service for service in proto.service}

    def fields(message):
        return {(f.name, f.number, f.type, f.label, f.type_name) for f in message.field}

    def compare(mine, other):
        assert fields(mine) <= fields(other), mine.name
        nested = {message.name: message for message in other.nested_type}
        for message in mine.nested_type:
            compare(message, nested[message.name])

    whole = 0
    for message in file.message_type:
        compare(message, theirs[message.name])
        whole += fields(message) == fields(theirs[message.name])
    assert whole >= len(file.message_type) - 5, "all but the configuration's messages are complete"
    for enum in file.enum_type:
        assert {(v.name, v.number) for v in enum.value} == {(v.name, v.number) for v in theirs[enum.name].value}
    (service,) = file.service

    def methods(of):
        return {(m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming) for m in of.method}

    assert methods(service) < methods(theirs[service.name])
    absent = {method[0] for method in methods(theirs[service.name]) - methods(service)}
    assert absent == {"CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings"}


def test_the_server_is_live_and_ready_and_says_what_it_is(client, served: Served):
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata()
    expected = request(served.address, "GET", "/v2").json()
    assert (metadata.name, metadata.version, list(metadata.extensions)) == (expected["name"], expected["version"], expected["extensions"])


def test_models_are_described_as_over_http(client, served: Served):
    metadata = client.get_model_metadata("convolutions", as_json=True)
    expected = request(served.address, "GET", "/v2/models/convolutions").json()
    for tensor in [*metadata["inputs"], *metadata["outputs"]]:
        tensor["shape"] = [int(dim) for dim in tensor["shape"]]
    assert metadata == expected
    config = client.get_model_config("convolutions").config
    assert (config.name, config.max_batch_size, config.HasField("dynamic_batching")) == ("convolutions", 8, True)
    (given,) = config.input
    assert (given.name, given.data_type, list(given.dims)) == ("image", model_config_pb2.TYPE_FP32, [3, 32, 32])
    assert client.is_model_ready("convolutions") and client.is_model_ready("convolutions", "1")
    assert not client.is_model_ready("unheard-of") and not client.is_model_ready("convolutions", "9")
    index = {(entry.name, entry.version): entry.state for entry in client.get_model_repository_index().models}
    listed = request(served.address, "POST", "/v2/repository/index").json()
    assert index == {(entry["name"], entry["version"]): entry["state"] for entry in listed}


def test_statistics_count_what_was_answered(client):
    def counts():
        (stats,) = client.get_inference_statistics("double").model_stats
        return stats

    before = counts()
    client.infer("double", tensors({"x": np.ones((2, 3), np.float32)}))
    after = counts()
    assert after.inference_count - before.inference_count == 2, "rows"
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    everything = {stats.name for stats in client.get_inference_statistics().model_stats}
    assert {"convolutions", "double"} <= everything


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_answers_are_those_of_http_and_of_pytorch(client, served: Served, rows: int):
    image = GENERATOR.standard_normal((rows, 3, 32, 32), dtype=np.float32)
    logits = client.infer("convolutions", tensors({"image": image})).as_numpy("logits")
    expected = served.models["convolutions"].answer(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(logits, by_http(served, "convolutions", {"image": image})["logits"], atol=1e-6)


def test_a_large_message_comes_and_goes_whole(client):
    x = GENERATOR.standard_normal((8, 100_000), dtype=np.float32)
    np.testing.assert_array_equal(client.infer("double", tensors({"x": x})).as_numpy("y"), 2 * x)


def test_only_the_outputs_asked_for_come_in_their_order(client):
    inputs = pair()
    wanted = [sync_grpc.InferRequestedOutput("difference"), sync_grpc.InferRequestedOutput("sum")]
    result = client.infer("sum-and-difference", tensors(inputs), outputs=wanted, request_id="order-7")
    assert [output.name for output in result.get_response().outputs] == ["difference", "sum"]
    assert result.get_response().id == "order-7"
    np.testing.assert_array_equal(result.as_numpy("sum"), inputs["a"] + inputs["b"])
    only = client.infer("sum-and-difference", tensors(inputs), outputs=wanted[:1])
    assert only.as_numpy("sum") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_have_equal_answers(client, algorithm: str):
    x = np.tile(np.arange(50_000, dtype=np.float32), (2, 1))
    answer = client.infer("double", tensors({"x": x}), compression_algorithm=algorithm)
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def typed(model: str, name: str, datatype: str, shape: list[int], **contents) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model)
    tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


def test_typed_contents_are_answered_as_raw_ones(stub):
    values = GENERATOR.standard_normal(60_000, dtype=np.float32)
    for count in [6, 60_000]:
        answer = stub("ModelInfer", typed("double", "x", "FP32", [2, count // 2], fp32_contents=values[:count]), "ModelInferResponse")
        (raw,) = answer.raw_output_contents
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), 2 * values[:count])


def test_a_request_waits_as_long_as_its_call_and_no_longer(client):
    given = tensors({"x": np.ones((8, 256), np.float32)})
    with pytest.raises(InferenceServerException) as refused:
        client.infer("slow", given, client_timeout=0.001)
    # Whoever notices first: the client, the queue, or the engine that sees that no replica can.
    assert "deadline" in (str(refused.value.status()) + refused.value.message()).lower()
    assert client.infer("slow", given, client_timeout=30).as_numpy("y").shape == (8, 256)


def test_refusals_have_the_codes_of_the_page(client, stub, served: Served):
    good = {"x": np.ones((1, 3), np.float32)}
    for model, inputs, code, says in [
        ("unheard-of", good, "NOT_FOUND", 'there is no model "unheard-of"'),
        ("double", {"y": good["x"]}, "INVALID_ARGUMENT", "the model has no such input"),
        ("double", {"x": np.ones((9, 3), np.float32)}, "INVALID_ARGUMENT", ""),
        ("double", {"x": np.ones((1, 3), np.int64)}, "INVALID_ARGUMENT", "INT64"),
        ("bad name", good, "INVALID_ARGUMENT", ""),
        ("moody", {"x": np.full((1, 1), -1, np.float32)}, "INTERNAL", "told to throw"),
        ("double", {"x": np.ones((1, 2 << 20), np.float32)}, "RESOURCE_EXHAUSTED", "larger than the limit of 4194304 bytes"),
    ]:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(model, tensors(inputs))
        assert code in str(refused.value.status()), (model, str(refused.value))
        assert says in refused.value.message()
    with pytest.raises(InferenceServerException) as refused:
        client.load_model("double")
    assert "UNIMPLEMENTED" in str(refused.value.status()) and "/v1/models" in refused.value.message()
    # The message of HTTP for the same mistake.
    body = b'{"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}]}'
    with pytest.raises(InferenceServerException) as refused:
        client.infer("double", tensors({"y": good["x"]}))
    assert refused.value.message() == served.infer("double", body).json()["error"]


def test_bad_contents_are_refused_with_their_place(stub):
    both = typed("double", "x", "FP32", [1, 1], fp32_contents=[1.0])
    both.raw_input_contents.append(b"1234")
    short = typed("double", "x", "FP32", [1, 2])
    short.raw_input_contents.append(b"1234")
    for message, says in [
        (both, "inputs[0].contents: given, and raw_input_contents, too"),
        (short, "the data has 4 bytes, but FP32 [1,2] requires 8"),
        (typed("double", "x", "FP32", [1, 2], int_contents=[1, 2]), "inputs[0].contents.int_contents: given for FP32"),
        (typed("double", "x", "FP32", [-1, 2], fp32_contents=[1, 2]), "shape"),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            stub("ModelInfer", message, "ModelInferResponse")
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert says in refused.value.details()


def test_a_stream_answers_in_order_and_outlives_its_errors(served: Served):
    answers: queue.Queue = queue.Queue()
    client = sync_grpc.InferenceServerClient(served.cluster.grpc)
    client.start_stream(lambda result, error: answers.put((result, error)))
    inputs = [GENERATOR.standard_normal((1 + number % 4, 5), dtype=np.float32) for number in range(200)]
    for number, x in enumerate(inputs):
        model = "unheard-of" if number % 50 == 49 else "slow" if number % 100 == 0 else "double"
        given = {"x": np.ones((1, 256), np.float32)} if model == "slow" else {"x": x}
        client.async_stream_infer(model, tensors(given), request_id=str(number), enable_empty_final_response=number == 1)
    for number, x in enumerate(inputs):
        result, error = answers.get(timeout=60)
        if number % 50 == 49:
            assert "there is no model" in error.message()
        else:
            assert error is None, error
            response = result.get_response()
            assert response.id == str(number)
            assert ("triton_final_response" in response.parameters) == (number == 1)
            if number % 100:
                np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
    client.stop_stream()
    client.close()


def test_an_asyncio_stream_answers(served: Served):
    async def ask() -> list[np.ndarray]:
        client = asyncio_grpc.InferenceServerClient(served.cluster.grpc)

        async def requests():
            for number in range(20):
                yield {"model_name": "double", "inputs": tensors({"x": np.full((1, 2), number, np.float32)})}

        answers = [result.as_numpy("y") async for result, error in client.stream_infer(requests())]
        await client.close()
        return answers

    answers = asyncio.run(ask())
    assert [answer[0, 0] for answer in answers] == [2 * number for number in range(20)]


def test_many_clients_at_the_same_time(served: Served):
    client = sync_grpc.InferenceServerClient(served.cluster.grpc)

    def ask(number: int) -> bool:
        x = np.full((1, 40 + number % 3), number, np.float32)
        return bool((client.infer("double", tensors({"x": x})).as_numpy("y") == 2 * number).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(400)))
    client.close()


def test_tensors_in_shared_memory(client, served: Served):
    import tritonclient.utils.shared_memory as shm

    x = GENERATOR.standard_normal((2, 30_000), dtype=np.float32)
    region = shm.create_shared_memory_region("gin", "/packhorse_grpc_in", x.nbytes)
    made = shm.create_shared_memory_region("gout", "/packhorse_grpc_out", x.nbytes)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("gin", "/packhorse_grpc_in", x.nbytes)
        client.register_system_shared_memory("gout", "/packhorse_grpc_out", x.nbytes)
        assert set(client.get_system_shared_memory_status().regions) == {"gin", "gout"}
        given = sync_grpc.InferInput("x", list(x.shape), "FP32")
        given.set_shared_memory("gin", x.nbytes)
        wanted = sync_grpc.InferRequestedOutput("y")
        wanted.set_shared_memory("gout", x.nbytes)
        result = client.infer("double", [given], outputs=[wanted])
        assert result.get_output("y").parameters["shared_memory_region"].string_param == "gout"
        np.testing.assert_array_equal(shm.get_contents_as_numpy(made, np.float32, x.shape), 2 * x)
        # They are the same regions over HTTP.
        assert {listed["name"] for listed in request(served.address, "GET", "/v2/systemsharedmemory/status").json()} == {"gin", "gout"}
        client.unregister_system_shared_memory("gin")
        with pytest.raises(InferenceServerException, match="there is no shared memory region"):
            client.infer("double", [given])
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
    finally:
        shm.destroy_shared_memory_region(region)
        shm.destroy_shared_memory_region(made)


def test_reflection_and_health_without_their_packages(served: Served):
    """As grpcurl and Kubernetes ask, by messages that are written by hand."""
    with grpc.insecure_channel(served.cluster.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        assert check(b"", timeout=10) == b"\x08\x01", "SERVING"
        assert check(b"\x0a\x1einference.GRPCInferenceService", timeout=10) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as unknown:
            check(b"\x0a\x03abc", timeout=10)
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        for version in ["v1", "v1alpha"]:
            reflect = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo", bytes, bytes)
            listed, found = reflect(iter([b"\x3a\x00", b"\x22\x1einference.GRPCInferenceService"]), timeout=10)
            assert b"inference.GRPCInferenceService" in listed
            assert b"inference.proto" in found
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", bytes, bytes)
        watching = watch(b"", timeout=60)
        assert next(watching) == b"\x08\x01", "SERVING"
        watching.cancel()
        assert next(watch(b"\x0a\x03abc", timeout=10)) == b"\x08\x03", "SERVICE_UNKNOWN"
