"""The images of `docker/` and `docker/compose.yaml`: built, started, asked, restarted, ended."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import chart
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


class Pods:
    """Containers of the chart, run by podman as they are rendered: their arguments, environment, users, rights and volumes."""

    def __init__(self, images: Images, folder: Path):
        self.images = images
        flags = ["image.registry=localhost", f"image.tag={VERSION}", "agents[0].image=packhorse-agent"]
        # A simulated device has no memory of a CPU.
        flags += ["agents[0].env[0].name=PACKHORSE_LOG", "agents[0].env[0].value=info"]
        self.rendered = chart.objects("cpu", *(word for flag in flags for word in ("--set", flag)))
        self.secrets = folder / "secrets"
        images.run("sh", str(ROOT / "docker/make-secrets.sh"), str(self.secrets))
        self.folder = folder
        self.started: list[str] = []

    def command(self, name: str, values: dict[str, str], *more: str) -> list[str]:
        """The command that runs a container: with values in place of references, and with further arguments of podman."""
        ((pod, one),) = [(pod, one) for _, _, pod in chart.pods(self.rendered) for one in chart.containers(pod) if one["name"] == name]
        security, context = pod["securityContext"], one["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        command = ["run", "--name", f"chart-{name}", "--no-healthcheck", "--network", "host", "--read-only", "--read-only-tmpfs=false"]
        command += ["--security-opt", "no-new-privileges", "--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
        command += [f"--cap-drop={each}" for each in context["capabilities"]["drop"]]
        command += [f"--cap-add={each}" for each in context["capabilities"].get("add", [])]
        for variable in one.get("env", []):
            value = values.get(variable["name"], variable.get("value"))
            assert value is not None, variable
            command += ["--env", f"{variable['name']}={value}"]
        for mount in one.get("volumeMounts", []):
            if mount.get("readOnly"):
                command += ["--volume", f"{self.secrets}:{mount['mountPath']}:ro"]
            else:
                command += ["--volume", f"{self.volume(pod, mount['name'])}:{mount['mountPath']}"]
        if entrypoint := one.get("command"):
            command += ["--entrypoint", json.dumps(entrypoint)]
        return [*command, *more, one["image"], *one.get("args", [])]

    def volume(self, pod: dict, name: str) -> Path:
        """A new volume, as Kubernetes makes one: of root, and writable for the pod's fsGroup, or for everybody."""
        folder = self.folder / f"{pod['serviceAccountName']}-{pod['containers'][0]['name']}-{name}"
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o777)
        return folder

    def run(self, name: str, values: dict[str, str], *more: str) -> None:
        self.started.append(f"chart-{name}")
        self.images.podman(*self.command(name, values, "--detach", *more))

    def log(self, name: str) -> str:
        command = ["podman", "logs", f"chart-{name}"]
        return subprocess.run(command, env=self.images.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def close(self) -> None:
        for name in self.started:
            self.images.podman("rm", "-f", name)


@pytest.mark.skipif(chart.helm() is None, reason="there is no helm: `cargo xtask test` unpacks it from a package of npm")
def test_the_charts_containers_answer_as_they_are_rendered(images: Images, tmp_path: Path):
    pods = Pods(images, tmp_path)
    # The files of a mounted Secret are root's, and readable for the pod's group.
    for file in [pods.secrets, *pods.secrets.iterdir()]:
        shutil.chown(file, 0, 10001)
        file.chmod(0o750 if file.is_dir() else 0o440)
    inference, grpc, admin_port = free_port(), free_port(), free_port()
    listen = {"PACKHORSE_LISTEN": inference, "PACKHORSE_GRPC_LISTEN": grpc, "PACKHORSE_ADMIN_LISTEN": admin_port}
    try:
        pods.run("gateway", {name: f"127.0.0.1:{port}" for name, port in listen.items()})
        admin = Admin(f"127.0.0.1:{admin_port}", (pods.secrets / "admin-token").read_text())
        probe = chart.container(pods.rendered, "gateway")["readinessProbe"]["httpGet"]["path"]

        def status(path: str) -> int:
            try:
                return request(f"127.0.0.1:{inference}", "GET", path).status
            except HTTPError:
                return 0

        wait_until(lambda: status(probe) == 200, "the gateway to be ready", limit=60)
        ready = pods.command("ready", {})
        address = next(word for word in ready if word.endswith("_SERVICE_HOST):8080"))
        ready[ready.index(address)] = f"127.0.0.1:{inference}"
        images.podman(*ready[:1], "--rm", *ready[1:])

        images.podman(*pods.command("folders", {}, "--rm"))
        profiles = models.profiles(tmp_path, {"m": 5})
        agent = {
            "PACKHORSE_NODE": "node",
            "PACKHORSE_GATEWAY": f"http://127.0.0.1:{admin_port}",
            "PACKHORSE_LISTEN_ADDRESS": "127.0.0.1",
            "PACKHORSE_DEVICES": "simulated:V100-SXM2-16GB:1",
        }
        # The development build of the worker is linked with libtorch, which the image has not.
        libtorch = ROOT / ".venv"
        more = [f"{profiles}:/etc/packhorse/profiles.csv:ro", f"{libtorch}:{libtorch}:ro"]
        pods.run("agent", agent, *(word for each in more for word in ("--volume", each)), "--env", "PACKHORSE_PROFILES=/etc/packhorse/profiles.csv")
        wait_until(lambda: admin.get("/v1/nodes"), "the agent to join", limit=30)
        admin.register(models.simulated("m"), b"the file of m")
        admin.wait_for_state("m", "ready")
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        answer = request(f"127.0.0.1:{inference}", "POST", "/v2/models/m/infer", json.dumps({"inputs": [x]}).encode())
        assert answer.status == 200, answer
        (worker,) = admin.get("/v1/models/m")["replicas"]
        of_worker = images.podman("exec", "chart-agent", "cat", f"/proc/{worker['pid']}/status")
        assert "\nUid:\t10002\t10002\t10002\t10002\n" in of_worker, "workers have a user of their own"
        assert images.podman("stop", "--time", "30", "chart-gateway") and "stopped" in pods.log("gateway")
    except AssertionError:
        print(pods.log("gateway")[-3000:], pods.log("agent")[-3000:])
        raise
    finally:
        pods.close()
