"""The admin listener: who may ask what, and a model's way from registration to removal."""

import hashlib
import re
from collections.abc import Callable

import models
import pytest
from cluster import Cluster, is_running, wait_until
from conftest import Served
from http_admin import Answer, request

MakeCluster = Callable[..., Cluster]
OPEN = ("/metrics", "/openapi.json", "/docs")
# What an agent does, and no more.
AGENTS_OWN = re.compile(r"^(PUT /v1/agents/.*|GET /v1/agents/.*|GET /v1/artifacts/.*)$")


def routes(served: Served) -> list[tuple[str, str]]:
    """Every documented operation of the admin listener, with something in place of its parameters. Without those that start and end a session."""
    document = request(served.admin.address, "GET", "/openapi.json").json()
    operations = []
    for path, item in document["paths"].items():
        concrete = path.replace("{digest}", "sha256:" + "0" * 64).replace("{version}", "1")
        concrete = re.sub(r"\{[^}]*\}", "x", concrete)
        of_admins = [m for m in item if m in ("get", "put", "post", "patch", "delete") and "inference" not in item[m]["tags"]]
        operations += [(m.upper(), concrete) for m in of_admins]
    return [o for o in operations if o not in (("POST", "/v1/session"), ("DELETE", "/v1/session"))]


def test_every_route_under_v1_wants_a_token(served: Served):
    guarded = [(method, path) for method, path in routes(served) if path.startswith("/v1")]
    assert len(guarded) > 15
    for method, path in guarded:
        for token in (None, "wrong", served.admin.token[:-1], served.admin.token + "x"):
            answer = served.admin.call(method, path, token=token)
            assert answer.status == 401, (method, path, token)
            assert answer.error


def test_an_agent_token_opens_only_what_agents_need(served: Served):
    for method, path in routes(served):
        if not path.startswith("/v1"):
            continue
        answer = served.admin.call(method, path, token=served.cluster.agent_token)
        if AGENTS_OWN.match(f"{method} {path}"):
            assert answer.status not in (401, 403), (method, path, answer)
        else:
            assert answer.status in (401, 403), (method, path, answer)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic {token}", "{token}", "bearer\t{token}", "Bearer {token} x"])
def test_odd_credentials_are_none(served: Served, header: str):
    headers = {"authorization": header.format(token=served.admin.token)}
    assert request(served.admin.address, "GET", "/v1/models", headers=headers).status == 401


@pytest.mark.parametrize("path", OPEN)
def test_documents_and_metrics_are_open(served: Served, path: str):
    answer = request(served.admin.address, "GET", path)
    assert answer.status in (200, 303, 307, 308), answer


def test_the_documentation_page_loads_nothing_from_elsewhere(served: Served):
    answer = request(served.admin.address, "GET", "/docs/")
    assert answer.status == 200
    assert not re.findall(rb"""(?:src|href)=["'](?:https?:)?//""", answer.body)


def test_unknown_paths_and_methods_are_json_errors(served: Served):
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/nothing", 404), ("DELETE", "/v1/policy", 405)]:
        answer = served.admin.call(method, path)
        assert answer.status == status
        assert answer.error


def test_the_token_files_are_private(served: Served):
    for name in ("admin-token", "agent-token"):
        assert (served.cluster.state / name).stat().st_mode & 0o777 == 0o600


GOOD = models.simulated("new-model")


def changed(**changes) -> dict:
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("registration", "word"),
    {
        "a name with a slash": (changed(name="a/b"), "name"),
        "a name with dots": (changed(name="../x"), "name"),
        "an empty name": (changed(name=""), "name"),
        "a long name": (changed(name="x" * 129), "name"),
        "no name": (changed(name=...), "name"),
        "version zero": (changed(version=0), "version"),
        "a huge version": (changed(version=2**40), "version"),
        "no SLO": (changed(slo_ms=...), "slo_ms"),
        "an SLO of zero": (changed(slo_ms=0), "slo_ms"),
        "a negative SLO": (changed(slo_ms=-1), "slo_ms"),
        "an SLO over a minute": (changed(slo_ms=60_001), "slo_ms"),
        "a negative rate": (changed(rate_rps=-1), "rate_rps"),
        "a huge batch": (changed(max_batch_size=1_000_000), "max_batch_size"),
        "a negative batch": (changed(max_batch_size=-1), "max_batch_size"),
        "no inputs": (changed(inputs=[]), "inputs"),
        "inputs left out": (changed(inputs=...), "inputs"),
        "no outputs": (changed(outputs=[]), "outputs"),
        "an unknown datatype": (changed(inputs=[models.tensor("x", "FP31", [-1, 4])]), "FP31"),
        "a tensor of BYTES": (changed(inputs=[models.tensor("x", "BYTES", [-1, 4])]), "BYTES"),
        "an input twice": (changed(inputs=[models.tensor("x", "FP32", [-1, 4])] * 2), "inputs[1].name"),
        "a fixed batch dimension": (changed(inputs=[models.tensor("x", "FP32", [1, 4])]), "inputs[0].shape"),
        "a dimension below -1": (changed(inputs=[models.tensor("x", "FP32", [-1, -2])]), "dimension"),
        "an overflowing shape": (changed(inputs=[models.tensor("x", "FP32", [-1, 2**40, 2**40])]), "inputs[0].shape"),
        "padding of the batch": (
            changed(inputs=[models.tensor("x", "FP32", [-1, -1], pad={"axis": 0, "value": 0})]),
            "pad",
        ),
        "a misspelt field": (changed(slo=5), "slo"),
    }.values(),
)
def test_registrations_out_of_their_limits_name_the_field(served: Served, registration: dict, word: str):
    digest = served.admin.upload(b"some file")
    answer = served.admin.call("POST", "/v1/models", {**registration, "artifact": digest})
    assert answer.status in (400, 422), answer
    assert word in answer.error
    assert served.admin.call("GET", "/v1/models/new-model").status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"name": NaN}'])
def test_bodies_that_are_no_registration(served: Served, body: bytes):
    answer = served.admin.call("POST", "/v1/models", body)
    assert answer.status == 400
    assert answer.error


def test_an_artifact_is_what_its_digest_says_or_is_refused(served: Served):
    data = b"the real file"
    right = f"sha256:{hashlib.sha256(data).hexdigest()}"
    wrong = f"sha256:{hashlib.sha256(b'another').hexdigest()}"
    answer = served.admin.call("PUT", f"/v1/artifacts/{wrong}", data)
    assert answer.status == 400
    assert right in answer.error or wrong in answer.error
    assert served.admin.call("GET", f"/v1/artifacts/{wrong}").status == 404
    answer = served.admin.call("POST", "/v1/models", {**GOOD, "artifact": wrong})
    assert answer.status in (400, 404)
    assert wrong in answer.error
    for digest in ["sha256:00", "md5:" + "0" * 64, "sha256:" + "G" * 64, "..%2f..%2fetc"]:
        assert served.admin.call("PUT", f"/v1/artifacts/{digest}", data).status in (400, 404)
    assert served.admin.call("PUT", f"/v1/artifacts/{right}", data).status in (200, 201)
    assert served.admin.call("GET", f"/v1/artifacts/{right}").body == data


def test_a_registration_without_a_file_is_refused(served: Served):
    answer = served.admin.call("POST", "/v1/models", GOOD)
    assert answer.status == 400
    assert "artifact" in answer.error


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "models/../../../etc/passwd", "missing.pt", ""])
def test_files_outside_the_roots_cannot_be_registered(served: Served, path: str):
    path = path if path.startswith("/") else str(served.folder / path)
    answer = served.admin.call("POST", "/v1/models", {**GOOD, "artifact_path": path})
    assert answer.status in (400, 404), answer
    assert "artifact_path" in answer.error


def test_a_link_out_of_the_roots_is_not_followed(served: Served, tmp_path):
    outside = tmp_path / "outside.pt"
    outside.write_bytes(b"secret")
    link = served.folder / "link.pt"
    link.symlink_to(outside)
    answer = served.admin.call("POST", "/v1/models", {**GOOD, "artifact_path": str(link)})
    assert answer.status in (400, 404), answer


def test_a_file_under_a_root_is_registered_by_path_and_removed_again(served: Served):
    double = served.models["double"]
    registration = {**double.registration, "name": "by-path", "artifact_path": str(double.file)}
    answer = served.admin.call("POST", "/v1/models", registration)
    assert answer.status == 201, answer
    assert answer.headers["location"].endswith("/v1/models/by-path") or "by-path" in answer.headers["location"]
    served.admin.wait_for_state("by-path", "ready")
    (pid,) = served.cluster.worker_pids("by-path")
    assert served.admin.call("POST", "/v1/models", registration).status == 409

    assert served.admin.call("DELETE", "/v1/models/by-path").status == 200
    assert served.admin.call("GET", "/v1/models/by-path").status == 404
    # The data plane is told of it; the answer does not wait for that.
    wait_until(lambda: request(served.address, "GET", "/v2/models/by-path").status == 404, "the data plane to forget it")
    assert served.admin.call("DELETE", "/v1/models/by-path").status == 404
    wait_until(lambda: not is_running(pid), "its worker to end")


def test_slo_and_rate_change_without_a_restart(served: Served):
    before = served.cluster.worker_pids("convolutions")
    answer = served.admin.call("PATCH", "/v1/models/convolutions", {"slo_ms": 15000, "rate_rps": 2})
    assert answer.status == 200, answer
    view = served.admin.get("/v1/models/convolutions")
    assert (view["slo_ms"], view["rate_rps"]) == (15000, 2)
    for bad in [{"slo_ms": 0}, {"slo_ms": 60_001}, {"rate_rps": -1}, {"name": "x"}, {"slo_ms": "1"}]:
        answer = served.admin.call("PATCH", "/v1/models/convolutions", bad)
        assert answer.status in (400, 422), answer
        assert answer.error
    assert served.admin.call("PATCH", "/v1/models/unheard-of", {"slo_ms": 5}).status == 404
    assert served.cluster.worker_pids("convolutions") == before


def test_a_file_that_is_no_torchscript_fails_and_says_so(served: Served):
    served.admin.register({**GOOD, "name": "not-torchscript"}, b"PK\x03\x04 this is no program" * 100)
    try:
        view = wait_for_failure(served, "not-torchscript")
        assert view["reason"]
        assert str(served.folder) not in view["reason"], "no internal path"
        assert request(served.address, "GET", "/v2/models/not-torchscript/ready").status == 503
    finally:
        assert served.admin.call("DELETE", "/v1/models/not-torchscript").status == 200


def test_a_signature_unlike_the_program_fails_and_says_so(served: Served):
    file = served.models["sum-and-difference"].file
    one_input = models.registration(
        "one-input", [models.tensor("a", "FP32", [-1, 16])], [models.tensor("sum", "FP32", [-1, 16])]
    )
    other_output = {**served.models["sum-and-difference"].registration, "name": "other-output"}
    other_output["outputs"] = [models.tensor("sum", "FP32", [-1, 5]), models.tensor("difference", "FP32", [-1, 16])]
    for registration, word in [(one_input, "1"), (other_output, "sum")]:
        served.admin.register(registration, file)
        try:
            assert word in wait_for_failure(served, registration["name"])["reason"]
        finally:
            assert served.admin.call("DELETE", f"/v1/models/{registration['name']}").status == 200


def wait_for_failure(served: Served, model: str) -> dict:
    def failed() -> dict | None:
        view = served.admin.get(f"/v1/models/{model}")
        return view if view["state"] == "failed" else None

    return wait_until(failed, f"{model} to fail", limit=60)


def test_a_profile_is_measured_exported_and_imported(served: Served):
    answer = served.admin.call("GET", "/v1/profiles")
    assert answer.status == 200
    header, *rows = answer.body.decode().splitlines()
    assert header.startswith("model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib")
    measured = [row.split(",") for row in rows if row.startswith("convolutions:1,")]
    assert [int(row[2]) for row in measured][:1] == [1]
    assert all(float(row[4]) > 0 for row in measured)
    (kind,) = {row[1] for row in measured}
    assert kind.startswith("cpu-")

    def import_row(row: str) -> Answer:
        row += "," * (header.count(",") - row.count(","))
        return served.admin.call("PUT", "/v1/profiles", f"{header}\n{row}\n".encode())

    answer = import_row("elsewhere:1,T4,1,,7.5,,100")
    assert answer.status in (200, 204), answer
    assert "elsewhere:1,T4,1" in served.admin.call("GET", "/v1/profiles").body.decode()
    answer = import_row("x:1,T4,0,,7.5")
    assert answer.status == 400
    assert "batch_size" in answer.error


def test_the_plan_names_every_replica_and_the_node_its_devices(served: Served):
    plan = served.admin.get("/v1/plan")
    assert {replica["model"] for replica in plan["replicas"]} >= set(served.models)
    assert plan["policy"] == "goodput"
    (node,) = served.admin.get("/v1/nodes")
    (device,) = node["devices"]
    assert node["state"] == "ready"
    assert device["id"] == "cpu-node/cpu0"
    assert len(device["replicas"]) == len(plan["replicas"]), "all models share the CPU"
    generations = [stored["generation"] for stored in served.admin.get("/v1/plans")]
    assert plan["generation"] == max(generations)
    assert len(set(generations)) == len(generations)


def test_a_preview_changes_nothing(served: Served):
    before = served.admin.get("/v1/plan")
    answer = served.admin.call("POST", "/v1/plans/preview", {"policy": "exclusive", "remove": ["double"]})
    assert answer.status == 200, answer
    preview = answer.json()
    assert preview["plan"]["policy"] == "exclusive"
    assert "double" not in {replica["model"] for replica in preview["plan"]["replicas"]}
    assert served.admin.get("/v1/plan") == before


def test_goodput_is_told_per_model(served: Served):
    served.infer("double", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}')
    goodput = served.admin.get("/v1/goodput")
    assert {model["name"] for model in goodput["models"]} >= set(served.models)


def test_an_unknown_policy_is_refused_and_the_known_ones_are_listed(served: Served):
    view = served.admin.get("/v1/policy")
    assert view["policy"] == "goodput" and view["discipline"] == "deadline"
    assert {"exclusive", "first-fit"} <= {policy["name"] for policy in view["policies"]}
    for bad in [{"policy": "best"}, {"discipline": "lottery"}, {"polciy": "exclusive"}]:
        assert served.admin.call("PUT", "/v1/policy", bad).status in (400, 422)
    assert served.admin.get("/v1/policy") == view


def test_metrics_are_the_ones_that_boards_chart(served: Served):
    served.infer("double", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}')
    text = request(served.admin.address, "GET", "/metrics").body.decode()
    for name in [
        "nv_inference_request_success",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us",
        "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us",
        "nv_inference_pending_request_count",
        "packhorse_slo_met_total",
    ]:
        assert re.search(rf'^{name}{{[^}}]*model="double"[^}}]*}} [0-9.e+]+$', text, re.MULTILINE), name
        assert f"# TYPE {name.removesuffix('_total')}" in text, name


@pytest.mark.parametrize("flags", [["--admin-listen", "0.0.0.0:0"]])
def test_an_admin_address_others_can_reach_wants_a_configured_secret(new_cluster: MakeCluster, flags: list[str]):
    with pytest.raises(AssertionError, match="admin"):
        new_cluster(*flags)
