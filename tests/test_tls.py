"""TLS on the listeners and between gateway and workers, with certificates that are right, wrong, and replaced."""

import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
import numpy as np
import pytest
import triton_clients
import tritonclient.http as sync_client
from authority import Authority, command
from cluster import PROGRAMS, Cluster, wait_until
from conftest import simulated_devices
from http_admin import request
from load import REQUEST
from network import Namespace, why_not
from otlp import Receiver

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def pair(authority: Authority) -> tuple[Path, Path]:
    """The certificate and key of this machine."""
    return authority.issue("localhost", "127.0.0.1")


@pytest.fixture
def secure(new_cluster: MakeCluster, authority: Authority, pair: tuple[Path, Path]) -> MakeCluster:
    """Makes a cluster with TLS on both listeners."""
    return lambda *flags: new_cluster("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]), *flags, ca=authority.ca)


def serve(cluster: Cluster, *agent_flags: str, **options) -> None:
    """Has a simulated device serve the model `m`."""
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": 1}), *agent_flags, **options)
    cluster.admin.register(models.simulated("m"), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")


def connect(cluster: Cluster, authority: Authority) -> ssl.SSLSocket:
    """A connection to the inference listener, after its handshake."""
    host, port = cluster.inference.split(":")
    return authority.context().wrap_socket(socket.create_connection((host, int(port)), timeout=20), server_hostname=host)


def serial(cluster: Cluster, authority: Authority) -> str:
    """The number of the certificate that a new connection is shown."""
    with connect(cluster, authority) as connection:
        return connection.getpeercert()["serialNumber"]


def is_live(connection: ssl.SSLSocket) -> bool:
    connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("told", [False, True], ids=["seen", "told"])
def test_a_new_certificate_is_for_new_connections(secure: MakeCluster, authority: Authority, pair: tuple[Path, Path], told: bool):
    cluster = secure()
    before = serial(cluster, authority)
    with connect(cluster, authority) as open_connection:
        assert open_connection.version() == "TLSv1.3"
        assert is_live(open_connection)
        expiry = cluster.admin.metric("packhorse_tls_certificate_expiry_seconds", listener="inference")
        assert expiry == ssl.cert_time_to_seconds(open_connection.getpeercert()["notAfter"])
        authority.replace(pair)
        if told:
            os.kill(cluster.gateway.pid, signal.SIGHUP)
        wait_until(lambda: serial(cluster, authority) != before, "the new certificate")
        assert is_live(open_connection), "the open connection goes on"
    assert cluster.gateway.is_running()


def test_the_health_check_of_a_container_finds_a_gateway_with_tls(secure: MakeCluster, pair: tuple[Path, Path]):
    flags = ["--listen", secure().inference, "--tls-cert", str(pair[0]), "--tls-key", str(pair[1])]
    assert subprocess.run([str(PROGRAMS / "packhorse-gateway"), "--check-health", *flags], timeout=20).returncode == 0


def test_a_broken_certificate_is_reported_and_the_former_one_stays(secure: MakeCluster, authority: Authority, pair: tuple[Path, Path]):
    cluster = secure()
    before, key = serial(cluster, authority), pair[1].read_bytes()
    valid = lambda: cluster.admin.metric("packhorse_tls_certificate_last_reload_successful", listener="admin")
    assert valid() == 1
    pair[1].write_text("half a key")
    wait_until(lambda: valid() == 0, "the metric to tell")
    assert serial(cluster, authority) == before
    assert f"{pair[1]}: the file contains no private key" in cluster.gateway.said()
    pair[1].write_bytes(key)
    wait_until(lambda: valid() == 1, "the metric to tell")


def test_the_admin_listener_may_have_a_certificate_of_its_own(secure: MakeCluster, tmp_path: Path):
    other = Authority(tmp_path / "other")
    certificate, key = other.issue("admin", "127.0.0.1")
    # `ca` is that of the inference listener, so the gateway is asked by hand.
    cluster = secure("--admin-tls-cert", str(certificate), "--admin-tls-key", str(key))
    assert request(cluster.inference, "GET", "/v2/health/live", ca=cluster.ca).status == 200
    assert request(cluster.admin_address, "GET", "/metrics", ca=other.ca).status == 200


def test_clients_without_tls_are_told(secure: MakeCluster):
    cluster = secure()
    for address in (cluster.inference, cluster.admin_address):
        answer = request(address, "POST", "/v2/models/m/infer", b"x" * 100_000)
        assert (answer.status, answer.error) == (400, "this listener uses TLS: its address begins with https://")
    refused = command("status", "--admin-url", f"http://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token"))
    assert "this listener uses TLS" in refused.stderr
    host, port = cluster.inference.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        # A record of TLS with nonsense in it.
        connection.sendall(b"\x16\x03\x01\x00\x05hello")
        assert connection.recv(4096)[:1] in (b"\x15", b""), "an alert or the end"


def test_a_handshake_that_does_not_go_on_loses_its_place(secure: MakeCluster, authority: Authority):
    cluster = secure("--max-connections", "2", "--client-timeout-ms", "1500")
    host, port = cluster.inference.split(":")
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(2)]
    silent[0].sendall(b"\x16\x03")
    path = "/v2/models/m"
    status = lambda: request(cluster.inference, "GET", path, ca=authority.ca).status
    wait_until(lambda: status() == 503, "the listener to be full")
    assert request(cluster.inference, "GET", "/v2/health/live", ca=authority.ca).status == 200
    for connection in silent:
        assert connection.recv(4096) == b""
        connection.close()
    wait_until(lambda: status() == 404, "a place")


def test_a_session_over_tls_is_never_sent_without(secure: MakeCluster):
    cluster = secure()
    answer = cluster.admin.call("POST", "/v1/session", {"token": cluster.admin.token}, token=None)
    assert answer.status == 201
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


def test_agent_command_and_triton_clients_use_tls(secure: MakeCluster, authority: Authority, tmp_path: Path):
    cluster = secure()
    serve(cluster)
    flags = ["--admin-url", f"https://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token")]
    listed = command("model", "list", *flags, "--ca-file", str(authority.ca))
    assert listed.returncode == 0 and "m" in listed.stdout, listed.stderr
    # The machine does not know the authority, and neither does another one.
    stranger = Authority(tmp_path / "stranger")
    for given, said in [([], "name the file of its authority with --ca-file"), (["--ca-file", str(stranger.ca)], str(stranger.ca))]:
        refused = command("model", "list", *flags, *given)
        assert refused.returncode == 1 and f"cannot trust https://{cluster.admin_address}" in refused.stderr, refused.stderr
        assert said in refused.stderr

    x = np.ones((1, 4), np.float32)
    clients = [
        sync_client.InferenceServerClient(cluster.inference, ssl=True, ssl_options={"ca_certs": str(authority.ca)}, insecure=False),
        triton_clients.Blocking(cluster.inference, ssl=True, ssl_context=authority.context()),
    ]
    for client in clients:
        result = client.infer("m", triton_clients.tensors({"x": x}), outputs=triton_clients.outputs(["y"]))
        assert result.as_numpy("y").shape == (1, 2)
        client.close()


def test_an_agent_names_the_authority_that_it_does_not_find(secure: MakeCluster, tmp_path: Path):
    cluster = secure()
    stranger = Authority(tmp_path / "stranger")
    cluster.ca = stranger.ca
    agent = cluster.start_agent("node1", *simulated_devices(cluster, {"m": 1}), joins=False)
    said = f"its certificate is not signed by an authority in {stranger.ca}"
    wait_until(lambda: said in agent.said(), "the agent to say so")
    assert agent.is_running(), "the gateway may get the right certificate"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if reason := why_not():
        pytest.skip(reason)
    namespace = Namespace(77)
    yield namespace
    namespace.close()


# The numbers of an image of 224 by 224 pixels, 602,112 bytes.
PIXELS = 3 * 224 * 224


class Link:
    """A gateway here and an agent in another network, with the flags for TLS between gateway and workers."""

    def __init__(self, new_cluster: MakeCluster, authority: Authority, namespace: Namespace, tmp_path: Path):
        self.authority, self.namespace, self.new_cluster = authority, namespace, new_cluster
        secret, token = tmp_path / "secret", tmp_path / "token"
        secret.write_text("0123456789abcdef0123456789abcdef")
        token.write_text("an-admin-token-of-a-test-0123456")
        self.secret, self.token = ["--link-secret-file", str(secret)], ["--admin-token-file", str(token)]

    def flags(self, mode: str, pair: tuple[Path, Path], ca: Path | None = None) -> list[str]:
        given = {"--link-tls": mode, "--link-cert": pair[0], "--link-key": pair[1], "--link-ca": ca or self.authority.ca}
        return [str(part) for flag in given.items() for part in flag]

    def start(self, gateway: list[str], agent: list[str]) -> Cluster:
        flags = [*self.secret, *self.token, *gateway]
        cluster = self.new_cluster(*flags, admin_listen="0.0.0.0:0")
        cluster.start_agent(
            "node1", *simulated_devices(cluster, {"m": 1}), *self.secret, *agent, namespace=self.namespace
        )
        # Rows as large as an image: many records of TLS each.
        inputs, outputs = [models.tensor("x", "FP32", [-1, PIXELS])], [models.tensor("y", "FP32", [-1, PIXELS])]
        cluster.admin.register(models.registration("m", inputs, outputs, rate_rps=10), b"the file of m")
        return cluster


@pytest.fixture
def link(new_cluster: MakeCluster, authority: Authority, namespace: Namespace, tmp_path: Path) -> Link:
    return Link(new_cluster, authority, namespace, tmp_path)


def test_batches_to_another_machine_are_within_tls(link: Link):
    gateway, worker = link.authority.issue("gateway", gateway=True), link.authority.issue("node1", link.namespace.address)
    for mode in ("server", "mutual"):
        cluster = link.start(link.flags(mode, gateway), link.flags(mode, worker))
        cluster.admin.wait_for_state("m", "ready")
        x = np.ones((1, PIXELS), np.float32)

        def infer(_: int) -> tuple[int, ...]:
            client = triton_clients.connect("sync", cluster.inference)
            result = client.infer("m", triton_clients.tensors({"x": x}), outputs=triton_clients.outputs(["y"]))
            client.close()
            return result.as_numpy("y").shape

        # In both directions at the same time.
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(infer, range(64))) == {(1, PIXELS)}
        (status,) = (cluster.folder / "node1").glob("replicas/*/status.json")
        host, port = re.search(r'"address": ?"([^"]+):(\d+)"', status.read_text()).groups()
        context = link.authority.context()
        context.set_alpn_protocols([f"packhorse-link-{mode}"])
        if mode == "mutual":
            context.load_cert_chain(*gateway)
        with context.wrap_socket(socket.create_connection((host, int(port)), timeout=20), server_hostname=host) as connection:
            assert connection.selected_alpn_protocol() == f"packhorse-link-{mode}"
        cluster.close()


def test_sides_that_do_not_agree_on_tls_say_so(link: Link, tmp_path: Path):
    gateway, worker = link.authority.issue("gateway", gateway=True), link.authority.issue("node1", link.namespace.address)
    elsewhere = link.authority.issue("node2", "192.0.2.1")
    stranger = Authority(tmp_path / "stranger")
    strange = stranger.issue("gateway", gateway=True)
    for of_gateway, of_agent, said in [
        (link.flags("server", gateway), [], "the worker does not speak TLS"),
        ([], link.flags("server", worker), "over TLS only"),
        (link.flags("server", gateway), link.flags("mutual", worker), "disagree on who has a certificate"),
        (link.flags("server", gateway, stranger.ca), link.flags("server", worker), f"not signed by an authority in {stranger.ca}"),
        (link.flags("server", gateway), link.flags("server", elsewhere), "its certificate is for"),
        (link.flags("mutual", strange), link.flags("mutual", worker), "refuses the gateway's certificate"),
        # A worker's certificate lets nobody send batches to others.
        (link.flags("mutual", elsewhere), link.flags("mutual", worker), "refuses the gateway's certificate"),
    ]:
        cluster = link.start(of_gateway, of_agent)
        view = lambda: str(cluster.admin.get("/v1/models/m")) + str(cluster.admin.get("/v1/findings")) + cluster.gateway.said()
        wait_until(lambda: said in view(), f"{said!r} to be said", limit=20)
        assert request(cluster.inference, "GET", "/v2/models/m/ready").status != 200
        cluster.close()


def test_traces_are_sent_to_a_receiver_whose_authority_is_named(
    new_cluster: MakeCluster, authority: Authority, pair: tuple[Path, Path], tmp_path: Path
):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*pair)
    stranger = Authority(tmp_path / "stranger")
    with Receiver(tls=tls) as receiver:
        flags = ["--otlp-endpoint", receiver.url, "--trace-sample", "1", "--otlp-ca-file"]
        cluster = new_cluster(*flags, str(authority.ca))
        serve(cluster)
        assert request(cluster.inference, "POST", "/v2/models/m/infer", REQUEST).status == 200
        wait_until(lambda: receiver.roots("infer"), "the trace")
        cluster.gateway.stop()

        cluster = new_cluster(*flags, str(stranger.ca))
        serve(cluster)
        assert request(cluster.inference, "POST", "/v2/models/m/infer", REQUEST).status == 200
        wait_until(lambda: cluster.admin.metric("packhorse_traces_dropped_total", cause="receiver"), "a dropped trace")
        assert "invalid peer certificate" in cluster.gateway.said()
        assert len(receiver.roots("infer")) == 1
