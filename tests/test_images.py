"""The images of `docker/` and `docker/compose.yaml`: built, started, asked, restarted, ended."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from cluster import free_port, wait_until
from http_admin import Admin, request
from images import ROOT, Images, Unavailable
from urllib3.exceptions import HTTPError

VERSION = "0.1.0"
GATEWAY = f"localhost/packhorse-gateway:{VERSION}"
AGENT = f"localhost/packhorse-agent:{VERSION}"
PROJECT = "packhorse-test"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    try:
        images = Images(folder)
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        images.make_base()
        images.probe()
        images.make_programs()
        images.make("gateway", GATEWAY)
        images.make("agent", AGENT)
        yield images
    except Unavailable as reason:
        pytest.skip(str(reason))
    finally:
        images.close()


class Compose:
    """The services of docker/compose.yaml, in a copy of its folder, because of the secrets."""

    def __init__(self, images: Images, folder: Path):
        self.images = images
        shutil.copytree(ROOT / "docker", folder / "docker", ignore=shutil.ignore_patterns("secrets"))
        self.file = folder / "docker/compose.yaml"
        # The development build of the worker is linked with libtorch, which the image has not.
        state, libtorch = "      - simulated:/var/lib/packhorse-agent\n", ROOT / ".venv"
        self.file.write_text(self.file.read_text().replace(state, f"{state}      - {libtorch}:{libtorch}:ro\n"))
        images.run("sh", str(folder / "docker/make-secrets.sh"))
        self.token = (folder / "docker/secrets/admin-token").read_text()
        port, admin_port = free_port(), free_port()
        self.inference, self.admin_address = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
        profiles = models.profiles(folder, {"m": 5})
        self.environment = {
            "PACKHORSE_PORT": str(port),
            "PACKHORSE_ADMIN_PORT": str(admin_port),
            "PACKHORSE_SIMULATED_PROFILES": str(profiles),
        }
        self.admin = Admin(self.admin_address, self.token)

    def run(self, *arguments: str) -> str:
        command = ["podman-compose", "-p", PROJECT, "-f", str(self.file), *arguments]
        return self.images.run(*command, environment=self.environment)

    def container(self, service: str) -> str:
        return f"{PROJECT}_{service}_1"

    def log(self, service: str) -> str:
        command = ["podman", "logs", self.container(service)]
        return subprocess.run(command, env=self.images.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def is_ready(self) -> bool:
        try:
            return request(self.inference, "GET", "/v2/health/ready").status == 200
        except HTTPError:
            return False

    def answers(self) -> bool:
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        try:
            answer = request(self.inference, "POST", "/v2/models/m/infer", json.dumps({"inputs": [x]}).encode())
        except HTTPError:
            return False
        return answer.status == 200


def test_the_gateways_image_is_small_and_has_no_shell(images: Images):
    (image,) = json.loads(images.podman("image", "inspect", GATEWAY))
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert image["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/packhorse-gateway", "--check-health"]
    mounted = images.run("buildah", "from", "--name", "look", GATEWAY).strip()
    root = Path(images.run("buildah", "mount", mounted).strip())
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert "etc/ssl/certs/ca-certificates.crt" in files
    assert not [file for file in files if file.endswith(("/sh", "/bash", "/busybox"))]
    # A development program is half as large again as that of a release, whose image docs/benchmarks/packaging.md measures: what can be
    # kept small here is everything beside it.
    program = (root / "usr/local/bin/packhorse-gateway").stat().st_size
    assert images.size(GATEWAY) - program < 13e6
    images.run("buildah", "rm", mounted)


def test_compose_serves_survives_a_restart_and_goes_down_with_nothing_lost(images: Images, tmp_path: Path):
    compose = Compose(images, tmp_path)
    try:
        compose.run("up", "-d", "gateway", "simulated")
        wait_until(compose.is_ready, "the gateway to answer", limit=60)
        (node,) = wait_until(lambda: compose.admin.get("/v1/nodes"), "the agent to join", limit=30)
        assert node["name"] == "simulated" and len(node["devices"]) == 4
        compose.admin.register(models.simulated("m"), b"the file of m")
        compose.admin.wait_for_state("m", "ready")
        assert compose.answers()
        images.podman("exec", compose.container("gateway"), "/usr/local/bin/packhorse-gateway", "--check-health")
        (worker,) = compose.admin.get("/v1/models/m")["replicas"]
        status = images.podman("exec", compose.container("simulated"), "cat", f"/proc/{worker['pid']}/status")
        assert "\nUid:\t10002\t10002\t10002\t10002\n" in status, "workers have a user of their own"

        images.podman("restart", compose.container("gateway"))
        wait_until(compose.answers, "the gateway to answer again", limit=30)
        assert "stopped" in compose.log("gateway"), "it drained"
        (adopted,) = compose.admin.get("/v1/models/m")["replicas"]
        assert adopted["pid"] == worker["pid"], "nothing is loaded again"

        # Down and up: the volumes have the registrations and the model file.
        compose.run("down")
        left = images.podman("ps", "-a", "--format", "{{.Names}}").split()
        assert left == []
        compose.run("up", "-d", "gateway", "simulated")
        wait_until(compose.is_ready, "the gateway to answer", limit=60)
        wait_until(compose.answers, "the model to answer", limit=60)
    except AssertionError:
        print(compose.log("gateway")[-3000:], compose.log("simulated")[-3000:])
        raise
    finally:
        compose.run("down", "-v")
    assert images.podman("volume", "ls", "-q") == ""
