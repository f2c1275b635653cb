"""What clients other than `tritonclient` force on a server: curl, the C++ client, performance tools."""

import json

import pytest
from cluster import wait_until
from conftest import Served
from http_admin import request

ASKED = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
BODY = json.dumps(ASKED).encode()


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "application/octet-stream", "application/x-www-form-urlencoded", "x"]
)
def test_the_content_type_of_a_request_does_not_matter(served: Served, content_type: str | None):
    headers = {} if content_type is None else {"content-type": content_type}
    assert served.infer("double", BODY, headers).status == 200
    assert request(served.address, "POST", "/v2/repository/index", b"", headers).status == 200
    assert request(served.address, "POST", "/v2/repository/index", b"{}", headers).status == 200


def test_pure_json_may_come_with_a_header_length(served: Served):
    answer = served.infer("double", BODY, {"Inference-Header-Content-Length": str(len(BODY))})
    assert answer.status == 200, answer
    assert "inference-header-content-length" not in answer.headers, "no binary bytes, no header"
    (output,) = answer.json()["outputs"]
    assert "parameters" not in output


def test_a_binary_answer_says_where_its_tensors_begin(served: Served):
    asked = {**ASKED, "parameters": {"binary_data_output": True}}
    answer = served.infer("double", json.dumps(asked).encode())
    assert answer.headers["content-type"] == "application/octet-stream"
    head = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:head])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(answer.body) - head == 8


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_the_root_has_a_slash_or_none(served: Served, path: str):
    assert request(served.address, "GET", path).json()["name"] == "packhorse"


def test_names_may_be_escaped_once(served: Served):
    assert request(served.address, "GET", "/v2/models/do%75ble").json()["name"] == "double"


def test_metadata_is_never_compressed(served: Served):
    for path in ["/v2", "/v2/models/double", "/v2/models/double/config", "/v2/models/stats"]:
        answer = request(served.address, "GET", path, headers={"accept-encoding": "gzip, deflate"})
        assert "content-encoding" not in answer.headers, path


def test_an_index_of_what_is_ready_leaves_out_what_is_not(served: Served):
    served.admin.register({**served.models["double"].registration, "name": "not-ready"}, b"no program")
    try:
        index = lambda body: {entry["name"] for entry in request(served.address, "POST", "/v2/repository/index", body).json()}
        # The data plane learns of a registration after it was acknowledged.
        wait_until(lambda: "not-ready" in index(b""), "the registered model to be listed")
        ready = index(b'{"ready": true}')
        assert "double" in ready and "not-ready" not in ready
    finally:
        assert served.admin.call("DELETE", "/v1/models/not-ready").status == 200
