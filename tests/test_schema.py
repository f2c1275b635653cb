"""Requests that follow openapi/gateway.json, and some that just do not, to every route of each listener: nothing is answered that the
document does not say, what it forbids is refused, and what it allows is refused only with a reason.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import schemathesis
from cluster import Cluster
from conftest import simulated_devices
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

DOCUMENT = Path(__file__).parent.parent / "openapi/gateway.json"
# Streams that do not end, and files.
NOT_ASKED = "^/v1/(events|backup)$"
CHECKED = ["status_code_conformance", "content_type_conformance", "response_schema_conformance", "negative_data_rejection"]
# What a document cannot say of a request: the words of the refusals.
REASONS = [
    r"^[a-z_]+(\[\d+\])?(\.[a-z_]+(\[\d+\])?)*: ",  # names the field
    r"^(input|output) \"",  # unlike the signature of the model
    r"Exactly one of|exactly one of",
    r"is not stored|no such|there is no|not registered|unknown",
    r"line \d+",  # of a table
    r"invalid JSON",
    r"system shared memory is off",
    r"does not match|lease|the received bytes",
    r"change them without \?version",
    r"^Failed to deserialize query string: [a-z_]+: ",
]
SERVER_ERRORS = {500: "", 503: "retry", 504: "deadline", 507: ""}

api = schemathesis.openapi.from_path(DOCUMENT)
few = settings(
    max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    platforms = "kserve-v1,sagemaker=small,vertex=wide"
    cluster = Cluster(tmp_path_factory.mktemp("schema"), "--lease-ms", "60000", "--platform", platforms)
    cluster.start_agent("node1", *simulated_devices(cluster, {"small": 5.0, "wide": 5.0}, 2))
    for name in ("small", "wide"):
        cluster.admin.register(models.simulated(name), f"the file of {name}".encode())
    for name in ("small", "wide"):
        cluster.admin.wait_for_state(name, "ready")
    yield cluster
    assert cluster.gateway.is_running(), cluster.gateway.said()
    assert "panicked" not in cluster.gateway.said()
    cluster.close()


def is_known(case) -> bool:
    """Whether the body has an array in place of the object `options`, which is read field by field: only whole bodies must be objects."""
    return isinstance(case.body, dict) and isinstance(case.body.get("options"), list)


def check(case, address: str, token: str | None) -> None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    response = case.call(base_url=f"http://{address}", headers=headers, timeout=40)
    checks = CHECKED[:-1] if is_known(case) else CHECKED
    case.validate_response(response, checks=CHECKS.get_by_names(checks), headers=headers)
    if response.status_code < 400:
        return
    error = json.loads(response.content)["error"]
    # Calls of texts have the errors of other APIs.
    error = error["message"] if isinstance(error, dict) else error
    assert error, case.as_curl_command()
    documented = api[case.operation.path][case.operation.method].definition.raw["responses"]
    if response.status_code >= 500:
        # A failure inside the gateway is documented nowhere.
        allowed = str(response.status_code) in documented or "default" in documented
        assert allowed and response.status_code in SERVER_ERRORS and "internal error" not in error, (error, case.as_curl_command())
    elif case.meta.generation.mode.is_positive and response.status_code != 404:
        assert any(re.search(reason, error) for reason in REASONS), (error, case.as_curl_command())


@api.include(tag="inference").parametrize()
@few
def test_the_inference_listener(case, cluster: Cluster):
    check(case, cluster.inference, None)


@api.exclude(tag="inference").exclude(path_regex=NOT_ASKED).parametrize()
@few
def test_the_admin_listener(case, cluster: Cluster):
    if case.query and case.query.get("wait_ms"):
        case.query["wait_ms"] = 0
    check(case, cluster.admin_address, cluster.admin.token)
