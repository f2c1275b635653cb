"""The gRPC listener: its address, TLS, API keys, and its end, with the unmodified `tritonclient.grpc`."""

import json
import queue
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import models
import numpy as np
import pytest
import tritonclient.grpc as triton
from authority import Authority
from cluster import PROGRAMS, Cluster, wait_until
from conftest import simulated_devices
from http_admin import request
from tritonclient.utils import InferenceServerException

MakeCluster = Callable[..., Cluster]


def serve(cluster: Cluster, *names: str) -> None:
    """Has a simulated device serve models."""
    cluster.start_agent("node1", *simulated_devices(cluster, {name: 1 for name in names}))
    for name in names:
        cluster.admin.register(models.simulated(name), f"the file of {name}".encode())
    for name in names:
        cluster.admin.wait_for_state(name, "ready")


def given(client: triton.InferenceServerClient, model: str, **more) -> list[triton.InferInput]:
    """Inputs of zeros."""
    made = []
    for tensor in client.get_model_metadata(model, **more).inputs:
        shape = [1 if dim < 0 else dim for dim in tensor.shape]
        made.append(triton.InferInput(tensor.name, shape, tensor.datatype))
        made[-1].set_data_from_numpy(np.zeros(shape, np.float32))
    return made


def status(error: pytest.ExceptionInfo[InferenceServerException]) -> str:
    return str(error.value.status()).removeprefix("StatusCode.")


def test_the_listener_uses_tls_where_http_does(new_cluster: MakeCluster, tmp_path: Path):
    authority = Authority(tmp_path / "certs")
    certificate, key = authority.issue("localhost", "127.0.0.1")
    cluster = new_cluster("--tls-cert", str(certificate), "--tls-key", str(key), ca=authority.ca)
    with triton.InferenceServerClient(cluster.grpc, ssl=True, root_certificates=str(authority.ca)) as client:
        assert client.is_server_live()
    assert cluster.admin.metric("packhorse_tls_certificate_expiry_seconds", listener="grpc")
    with triton.InferenceServerClient(cluster.grpc) as client, pytest.raises(InferenceServerException) as clear:
        client.is_server_live(client_timeout=5)
    assert status(clear) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def test_keys_allow_what_they_allow_over_http(new_cluster: MakeCluster):
    cluster = new_cluster("--inference-keys", "required")
    serve(cluster, "mine", "yours")
    made = cluster.admin.call("POST", "/v1/keys", {"name": "mine", "scopes": ["infer:mine"], "max_in_flight": 50})
    key = made.json()
    headers = {"authorization": f"Bearer {key['key']}"}
    with triton.InferenceServerClient(cluster.grpc) as client:
        assert client.is_server_live() and client.is_server_ready(), "balancers have no key"
        for wrong in [None, {"authorization": "Bearer ph_nothing_of_the_kind"}]:
            with pytest.raises(InferenceServerException) as refused:
                client.get_server_metadata(headers=wrong)
            assert status(refused) == "UNAUTHENTICATED"
        tensors = given(client, "mine", headers=headers)
        client.infer("mine", tensors, headers=headers)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("mine", tensors)
        assert status(refused) == "UNAUTHENTICATED"
        for ask in [lambda: client.infer("yours", tensors, headers=headers), lambda: client.get_model_config("yours", headers=headers)]:
            with pytest.raises(InferenceServerException) as refused:
                ask()
            assert status(refused) == "PERMISSION_DENIED"
        assert [entry.name for entry in client.get_model_repository_index(headers=headers).models] == ["mine"]
        listed = client.get_inference_statistics(headers=headers).model_stats
        assert [stats.name for stats in listed] == ["mine"]
        # Each request of a stream uses the key.
        answers: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        for model in ["mine", "yours", "mine"]:
            client.async_stream_infer(model, tensors)
        errors = [answers.get(timeout=20)[1] for _ in range(3)]
        assert [error is None for error in errors] == [True, False, True]
        assert "yours" in errors[1].message()
        client.stop_stream()
    assert request(cluster.inference, "GET", "/v2").status == 401


def test_an_address_that_is_taken_is_a_warning_or_an_error(new_cluster: MakeCluster, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        command = [PROGRAMS / "packhorse-gateway", "--state-dir", tmp_path / "state", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        run = subprocess.run([*command, "--grpc-listen", address], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0
        assert f"cannot listen on {address} (--grpc-listen)" in run.stdout + run.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = "127.0.0.1:%d" % free.getsockname()[1]
    with socket.socket() as usual:
        usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            usual.bind(("127.0.0.1", 8001))
            usual.listen()
        except OSError:
            pass  # Somebody else has the usual port, which will do, too.
        command = [PROGRAMS / "packhorse-gateway", "--state-dir", tmp_path / "other", "--listen", listen, "--admin-listen", "127.0.0.1:0"]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        endpoints = tmp_path / "other/endpoints.json"
        wait_until(endpoints.exists, "the gateway to listen")
        assert json.loads(endpoints.read_text())["grpc"] is None
        gateway.terminate()
        said, _ = gateway.communicate(timeout=30)
        assert "there is no gRPC listener" in said
    cluster = new_cluster("--grpc-listen", "off")
    assert cluster.grpc is None
    assert request(cluster.inference, "GET", "/v2/health/live").status == 200


def test_calls_are_counted_and_have_ids(new_cluster: MakeCluster):
    cluster = new_cluster()
    serve(cluster, "m")
    with grpc.insecure_channel(cluster.grpc) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive", bytes, bytes)
        _, call = live.with_call(b"", metadata=[("x-request-id", "order-4711")], timeout=20)
        assert ("x-request-id", "order-4711") in [tuple(entry) for entry in call.initial_metadata()]
        config = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig", bytes, bytes)
        with pytest.raises(grpc.RpcError):
            config(b"\x0a\x02no", timeout=20)
    route = "/inference.GRPCInferenceService/"
    text = request(cluster.admin_address, "GET", "/metrics").body.decode()
    for method, code in [("ServerLive", 200), ("ModelConfig", 404)]:
        lines = [line for line in text.splitlines() if f'http_route="{route}{method}"' in line and f'http_response_status_code="{code}"' in line]
        assert lines, method


def test_a_stream_ends_with_the_gateway_and_what_began_is_answered(new_cluster: MakeCluster):
    cluster = new_cluster()
    serve(cluster, "m")
    answers: queue.Queue = queue.Queue()
    client = triton.InferenceServerClient(cluster.grpc)
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("m", given(client, "m"))
    result, error = answers.get(timeout=20)
    assert error is None and result is not None
    begin = time.monotonic()
    assert cluster.gateway.stop() == 0
    assert time.monotonic() - begin < 8, "a silent stream does not take the grace period"
    _, error = answers.get(timeout=20)
    assert error is not None
    client.close()


def test_a_client_comes_back_to_a_gateway_that_was_started_again(new_cluster: MakeCluster):
    cluster = new_cluster()
    serve(cluster, "m")
    client = triton.InferenceServerClient(cluster.grpc)
    tensors = given(client, "m")
    client.infer("m", tensors)
    cluster.gateway.kill()
    cluster.start_gateway()

    def answered() -> bool:
        try:
            client.infer("m", tensors, client_timeout=5)
            return True
        except InferenceServerException:
            return False

    wait_until(answered, "an answer")
    client.close()
