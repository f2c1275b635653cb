"""Renders the Helm chart of `deploy/helm/packhorse`."""

import shutil
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy/helm/packhorse"
# The values files that the chart is rendered with, by name.
VALUES = {file.name.removesuffix("-values.yaml"): file for file in sorted((CHART / "ci").glob("*-values.yaml"))}
RELEASE, NAMESPACE = "packhorse", "serving"


def helm() -> str | None:
    """Where Helm is: unpacked by `cargo xtask test`, or installed."""
    unpacked = ROOT / "target/tools/helm/helm"
    return str(unpacked) if unpacked.is_file() else shutil.which("helm")


def run(*arguments: str) -> subprocess.CompletedProcess:
    """Runs Helm."""
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=60)


def template(*arguments: str) -> subprocess.CompletedProcess:
    """Renders the chart with these arguments."""
    return run("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", "v1.28.0", *arguments)


def objects(values: str, *arguments: str) -> list[dict]:
    """The objects of the chart with a values file."""
    done = template("-f", str(VALUES[values]), *arguments)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(rendered: list[dict], *kinds: str) -> list[dict]:
    """The objects of these kinds."""
    return [one for one in rendered if one["kind"] in kinds]


def pods(rendered: list[dict]) -> list[tuple[str, dict, dict]]:
    """Name, labels and specification of every pod."""
    found = []
    for one in rendered:
        template = one["spec"]["template"] if one["kind"] in ("Deployment", "DaemonSet", "StatefulSet") else one
        if one["kind"] == "Pod" or template is not one:
            found.append((one["metadata"]["name"], template["metadata"]["labels"], template["spec"]))
    return found


def containers(pod: dict) -> list[dict]:
    """All containers of a pod."""
    return pod.get("initContainers", []) + pod["containers"]


def container(rendered: list[dict], name: str) -> dict:
    """The container of a name."""
    (found,) = [one for _, _, pod in pods(rendered) for one in containers(pod) if one["name"] == name]
    return found
