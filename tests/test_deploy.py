"""The files in `deploy`: Prometheus reads them, and what they chart and alert on is there on a live gateway under load."""

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from cluster import Cluster, Process, wait_until
from conftest import simulated_devices
from http_admin import request
from load import Load
from otlp import Receiver

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
BOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
# Metrics of listeners with TLS, which this cluster has not.
ABSENT = {"packhorse_tls_certificate_expiry_seconds"}


def program(name: str) -> str:
    """Where a program of Prometheus is: unpacked by `cargo xtask test`, or installed."""
    unpacked = ROOT / "target/tools/prometheus/usr/bin" / name
    found = str(unpacked) if unpacked.is_file() else shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name}: `cargo xtask test` unpacks it from Debian's package prometheus")
    return found


def promtool(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[str]:
    """The expressions of the alerts and recorded series."""
    text = (DEPLOY / "prometheus/alerts.yml").read_text()
    one_line = re.findall(r"^ +expr: (?!\|)(.+)$", text, re.M)
    blocks = re.findall(r"^ +expr: \|\n((?: {10}.*\n)+)", text, re.M)
    assert len(one_line) + len(blocks) == text.count("expr:")
    return one_line + blocks


def panels() -> list[tuple[str, str]]:
    """Title and expression of everything that a board charts."""
    found = []
    for file in BOARDS:
        board = json.loads(file.read_text())
        found += [("annotation", mark["expr"]) for mark in board["annotations"]["list"]]
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                found.append((f"{file.stem}: {panel['title']}", target["expr"].replace("$model", "busy")))
    return found


def names(expression: str) -> set[str]:
    """The gateway's metrics in an expression: not the recorded ones, whose names have colons, and not Prometheus' own `up`."""
    words = set(re.findall(r"(?<![\w:])(?:packhorse|nv|http)_\w+(?![\w:])", expression))
    return words - {"http_response_status_code"}


def family(name: str) -> str:
    """The name in a `# TYPE` line."""
    return re.sub("_(bucket|sum|count)$", "", name) if "duration_seconds" in name else name


def test_promtool_accepts_configuration_and_alerts():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")


def test_the_alerts_fire_when_they_should():
    promtool("test", "rules", "alerts.test.yml")


def test_boards_are_provisioned_and_have_their_own_panels():
    assert [file.stem for file in BOARDS] == ["devices", "model", "overview"]
    boards = [json.loads(file.read_text()) for file in BOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)
    for board in boards:
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids), board["title"]
        places = [panel["gridPos"] for panel in board["panels"]]
        assert all(place["x"] + place["w"] <= 24 for place in places), board["title"]
        charts = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert all(panel["description"] and panel["targets"] for panel in charts), board["title"]


class Live:
    """A gateway with keys, traces and load, and a Prometheus that scrapes it every second."""

    def __init__(self, folder: Path, cluster: Cluster):
        self.cluster = cluster
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        for file in ("alerts.yml", "prometheus.yml"):
            text = (DEPLOY / "prometheus" / file).read_text()
            (folder / file).write_text(text.replace("_interval: 15s", "_interval: 1s"))
        (folder / "targets.yml").write_text(f'- targets: ["{cluster.admin_address}"]\n')
        arguments = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
        arguments += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={self.address}"]
        self.process = Process(arguments, folder / "prometheus.log")

    def query(self, expression: str) -> list:
        """The series of an expression."""
        path = f"/api/v1/query?query={urllib.parse.quote(expression)}"
        answer = request(self.address, "GET", path)
        assert answer.status == 200, (expression, answer.body.decode())
        return answer.json()["data"]["result"]

    def is_scraping(self) -> bool:
        assert self.process.is_running(), self.process.said()
        try:
            return bool(self.query('up{job="packhorse"} == 1'))
        except Exception:  # noqa: BLE001  it does not listen yet
            return False


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "cluster").mkdir()
    with Receiver() as receiver:
        flags = ["--otlp-endpoint", receiver.url, "--trace-sample", "1", "--inference-keys", "required"]
        cluster = Cluster(folder / "cluster", *flags)
        live = None
        try:
            cluster.start_agent("node1", *simulated_devices(cluster, {"busy": 5, "idle": 5}, devices=3))
            for name in ("busy", "idle"):
                cluster.admin.register(models.simulated(name, rate_rps=20), name.encode())
            for name in ("busy", "idle"):
                cluster.admin.wait_for_state(name, "ready")
            key = cluster.admin.call("POST", "/v1/keys", {"name": "checkout", "scopes": ["infer:*"]})
            assert key.status == 201, key
            live = Live(folder, cluster)
            with Load(cluster.inference, "busy", clients=2, headers={"authorization": f"Bearer {key.json()['key']}"}) as load:
                wait_until(live.is_scraping, "Prometheus to scrape the gateway")
                needed = lambda: cluster.admin.metric("packhorse_devices_needed") > 0  # noqa: E731
                wait_until(needed, "the smallest cluster")
                rates = 'rate(packhorse_slo_met_total{model="busy"}[1m]) > 0'
                wait_until(lambda: live.query(rates), "a rate of answered requests")
                wait_until(lambda: live.query("packhorse_devices_needed > 0"), "the need for devices")
                yield live
                assert load.counts().keys() == {200}, load.counts()
        finally:
            if live:
                live.process.stop()
            cluster.close()


def test_every_charted_and_alerted_metric_is_on_a_live_gateway(live: Live):
    page = request(live.cluster.admin_address, "GET", "/metrics").body.decode()
    types = set(re.findall(r"^# TYPE (\S+) ", page, re.M))
    expressions = panels() + [("alerts.yml", expression) for expression in alerts()]
    used = {name for _, expression in expressions for name in names(expression)}
    assert len(used) > 30, used
    missing = {name for name in used - ABSENT if family(name) not in types}
    assert not missing, f"{missing} are not among {sorted(types)}"


def test_prometheus_answers_every_expression(live: Live):
    without_gpus = [(title, expression) for title, expression in panels() if "gpu" not in expression]
    for title, expression in panels():
        live.query(expression)
    for expression in alerts():
        live.query(expression)
    # A histogram without its last bucket has no quantiles.
    (p99,) = live.query('histogram_quantile(0.99, sum by (le) (rate(packhorse_request_duration_seconds_bucket{model="busy"}[1m])))')
    assert 0.005 <= float(p99["value"][1]) < 2.5, p99
    # What a cluster of simulated devices has, has series.
    rare = ("error", "ejection", "bias", "energy", "failure", "dropped", "changes(", "ratio_rate")
    for title, expression in without_gpus:
        if not any(word in expression for word in rare):
            wait_until(lambda: live.query(expression), f"series of {title}: {expression}")


def test_the_rules_are_evaluated_without_errors(live: Live):
    def states() -> list[dict]:
        answer = request(live.address, "GET", "/api/v1/rules").json()
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in states()), "every rule to be evaluated")
    assert not [rule["name"] for rule in states() if rule.get("state") == "firing"]


def test_devices_nodes_plan_findings_and_keys_are_told(live: Live):
    admin = live.cluster.admin
    assert admin.metric("packhorse_devices_have", kind="V100-SXM2-16GB") == 3
    assert admin.metric("packhorse_devices_needed", kind="V100-SXM2-16GB") == 1
    assert admin.metric("packhorse_nodes", state="ready") == 1
    assert admin.metric("packhorse_plan_generation") == admin.get("/v1/plan")["generation"]
    assert admin.metric("packhorse_key_requests_total", code="2xx") > 0
    assert admin.metric("packhorse_findings", problem="node_lost") == 0


def test_an_idle_model_has_no_series_but_its_planned_rate_and_those_of_its_replicas(live: Live):
    page = request(live.cluster.admin_address, "GET", "/metrics").body.decode()
    idle = [line for line in page.splitlines() if 'model="idle"' in line]
    of_replicas = {"packhorse_replicas_planned", "packhorse_replicas_ready", "packhorse_worker_restarts_total", "packhorse_replica_memory_bytes"}
    assert {line.split("{")[0] for line in idle} <= {"packhorse_planned_rate_rps"} | of_replicas, idle
    busy = [line for line in page.splitlines() if line.startswith("packhorse_request_duration_seconds_bucket{")]
    assert [re.search('le="([^"]*)"', line)[1] for line in busy] == ["0.001", "0.005", "0.025", "0.1", "0.5", "2.5", "10.0", "+Inf"]
    zipped = request(live.cluster.admin_address, "GET", "/metrics", headers={"accept-encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip"


def test_promtool_finds_no_fault_with_our_names(live: Live):
    page = request(live.cluster.admin_address, "GET", "/metrics").body
    done = subprocess.run([program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=60)
    # Triton's names are kept as they are.
    faults = [line for line in (done.stdout + done.stderr).decode().splitlines() if not line.startswith("nv_")]
    assert not faults, faults
