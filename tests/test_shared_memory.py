"""Triton's system shared memory extension, with the unmodified `tritonclient`."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.http as tritonhttp
import tritonclient.utils.shared_memory as shm
from cluster import Cluster
from conftest import Served
from http_admin import request
from tritonclient.utils import InferenceServerException

X = np.random.default_rng(1).standard_normal((4, 16), dtype=np.float32)


@pytest.fixture
def client(served: Served) -> Iterator[tritonhttp.InferenceServerClient]:
    client = tritonhttp.InferenceServerClient(served.address)
    yield client
    client.unregister_system_shared_memory()
    client.close()


@pytest.fixture
def region() -> Iterator:
    """A region for both tensors of a request, each as large as `X`."""
    handle = shm.create_shared_memory_region("both", f"/packhorse-test-{os.getpid()}", 2 * X.nbytes)
    yield handle
    shm.destroy_shared_memory_region(handle)


def tensors(offset: int = 0) -> tuple[list, list]:
    x = tritonhttp.InferInput("x", list(X.shape), "FP32")
    x.set_shared_memory("both", X.nbytes, offset)
    y = tritonhttp.InferRequestedOutput("y")
    y.set_shared_memory("both", X.nbytes, X.nbytes)
    return [x], [y]


def register(client: tritonhttp.InferenceServerClient) -> None:
    client.register_system_shared_memory("both", f"/packhorse-test-{os.getpid()}", 2 * X.nbytes)


def test_tensors_go_through_shared_memory(client, region):
    assert "system_shared_memory" in client.get_server_metadata()["extensions"]
    shm.set_shared_memory_region(region, [X])
    register(client)
    (status,) = client.get_system_shared_memory_status("both")
    assert status == {"name": "both", "key": f"/packhorse-test-{os.getpid()}", "offset": 0, "byte_size": 2 * X.nbytes}
    result = client.infer("double", tensors()[0], outputs=tensors()[1])
    assert result.get_output("y")["shape"] == list(X.shape)
    assert "data" not in result.get_output("y")
    y = shm.get_contents_as_numpy(region, np.float32, X.shape, X.nbytes)
    assert np.array_equal(y, 2 * X)
    # An output of its own, where the input is in shared memory.
    result = client.infer("double", tensors()[0], outputs=[tritonhttp.InferRequestedOutput("y")])
    assert np.array_equal(result.as_numpy("y"), 2 * X)


def test_what_is_not_registered_is_refused(client, region):
    with pytest.raises(InferenceServerException, match='there is no shared memory region "both"'):
        client.infer("double", tensors()[0], outputs=tensors()[1])
    register(client)
    with pytest.raises(InferenceServerException, match="is registered already"):
        register(client)
    with pytest.raises(InferenceServerException, match="it has 512 bytes, and 256 from byte 300 on are asked for"):
        client.infer("double", tensors(300)[0], outputs=tensors()[1])
    client.unregister_system_shared_memory("both")
    with pytest.raises(InferenceServerException, match="there is no shared memory region"):
        client.get_system_shared_memory_status("both")


def test_objects_of_another_user_are_refused(client, region):
    os.chown(f"/dev/shm/packhorse-test-{os.getpid()}", 65534, 65534)
    with pytest.raises(InferenceServerException, match="it belongs to another user"):
        register(client)


def test_an_object_that_somebody_leases_is_refused_at_once(client):
    # Without care, opening it would wait for the end of the lease, up to 45 s.
    key = f"/packhorse-leased-{os.getpid()}"
    path = f"/dev/shm{key}"
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's wish that the lease ends
    try:
        with open(path, "x+b") as file:
            file.truncate(64)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with pytest.raises(InferenceServerException, match="another process has a lease on it"):
                client.register_system_shared_memory("leased", key, 64)
        client.register_system_shared_memory("leased", key, 64)
    finally:
        os.unlink(path)
        signal.signal(signal.SIGIO, signal.SIG_DFL)


def test_clients_of_another_user_are_refused(client, region, served: Served):
    register(client)
    (inputs, outputs), address = tensors(), served.address
    body, length = tritonhttp.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
    # A request of a stranger to the region that this user has registered.
    script = (
        "import encodings.idna, http.client, os, sys; os.setgid(65534); os.setuid(65534); body = bytes.fromhex(sys.argv[2])\n"
        "connection = http.client.HTTPConnection(sys.argv[1])\n"
        "for path, body in [('models/double/infer', body), ('systemsharedmemory/unregister', b'')]:\n"
        "    connection.request('POST', '/v2/' + path, body); answer = connection.getresponse(); print(answer.status, answer.read().decode())\n"
    )
    told = subprocess.run([sys.executable, "-S", "-c", script, address, body.hex()], capture_output=True, text=True, check=True).stdout
    refused, kept = told.splitlines()
    assert refused.startswith("400 ") and "run as the gateway's user" in refused
    assert kept.startswith("403 ") and "run as the gateway's user" in kept
    assert client.get_system_shared_memory_status("both")


def test_clients_that_do_not_connect_over_loopback_are_refused(new_cluster: Callable[..., Cluster]):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but those of loopback")
        here = probe.getsockname()[0]
    cluster = new_cluster("--inference-keys", "off", "--system-shared-memory", listen="0.0.0.0:0")
    port = cluster.inference.rsplit(":", 1)[1]
    path = "/v2/systemsharedmemory/status"
    assert request(f"127.0.0.1:{port}", "GET", path).status == 200
    answer = request(f"{here}:{port}", "GET", path)
    assert answer.status == 403 and "connect over loopback" in answer.error


def test_it_is_off_unless_the_operator_turns_it_on(new_cluster: Callable[..., Cluster]):
    cluster = new_cluster()
    assert "system_shared_memory" not in request(cluster.inference, "GET", "/v2").json()["extensions"]
    answer = request(cluster.inference, "GET", "/v2/systemsharedmemory/status")
    assert answer.status == 400 and "--system-shared-memory turns it on" in answer.error
