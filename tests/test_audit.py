"""What admins do is recorded together with it: who, from where, what; and nothing of what was refused."""

import json
from collections.abc import Callable

import models
from cluster import Cluster
from conftest import simulated_devices
from http_admin import Answer, request

MakeCluster = Callable[..., Cluster]


def entries(cluster: Cluster, query: str = "") -> list[dict]:
    return cluster.admin.get(f"/v1/audit{query}")


def call(cluster: Cluster, status: int, method: str, path: str, body=None, token: str = "") -> Answer:
    answer = cluster.admin.call(method, path, body, token=token)
    assert answer.status == status, answer
    return answer


def test_every_act_is_recorded_with_its_actor(new_cluster: MakeCluster):
    cluster = new_cluster()
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": 10}))
    cluster.admin.register(models.simulated("m", slo_ms=1000), b"the file")
    cluster.admin.register(models.simulated("m", version=2, slo_ms=2000), b"another file")
    call(cluster, 200, "PATCH", "/v1/models/m", {"slo_ms": 500, "split": {"1": 100}})
    call(cluster, 200, "POST", "/v1/models/m/promote", {"version": 2})
    call(cluster, 200, "POST", "/v1/models/m/rollback")
    call(cluster, 200, "PUT", "/v1/policy", {"policy": "first-fit"})
    call(cluster, 200, "POST", "/v1/nodes/node1/cordon")
    call(cluster, 200, "POST", "/v1/nodes/node1/drain?deadline_s=60")
    call(cluster, 200, "POST", "/v1/nodes/node1/uncordon")
    token = call(cluster, 201, "POST", "/v1/nodes/node9/token").json()["token"]
    call(cluster, 200, "PUT", "/v1/profiles", (cluster.folder / "profiles.csv").read_bytes())
    key = call(cluster, 201, "POST", "/v1/keys", {"name": "deputy", "scopes": ["admin"]}).json()
    rotated = call(cluster, 200, "POST", f"/v1/keys/{key['id']}/rotate", {"overlap_s": 60}).json()
    call(cluster, 200, "DELETE", "/v1/models/m", token=rotated["key"])
    call(cluster, 204, "DELETE", f"/v1/keys/{key['id']}")

    done = [(entry["action"], entry["subject"]) for entry in reversed(entries(cluster))]
    digests = [subject for action, subject in done if action == "artifact.store"]
    assert done == [
        ("artifact.store", digests[0]),
        ("model.register", "m:1"),
        ("artifact.store", digests[1]),
        ("model.register", "m:2"),
        ("model.split", "m"),
        ("model.change", "m"),
        ("model.promote", "m"),
        ("model.roll-back", "m"),
        ("policy.change", None),
        ("node.cordon", "node1"),
        ("node.drain", "node1"),
        ("node.uncordon", "node1"),
        ("node.token", "node9"),
        ("profiles.import", None),
        ("key.create", key["id"]),
        ("key.rotate", key["id"]),
        ("model.remove", "m"),
        ("key.delete", key["id"]),
    ]
    # The oldest of each kind.
    by_action = {entry["action"]: entry for entry in entries(cluster)}
    assert by_action["model.register"]["change"]["slo_ms"] == 1000
    assert by_action["model.change"]["change"] == {"slo_ms": 500.0}
    # A change that names no version is one of the newest.
    assert by_action["model.change"]["before"] == {"slo_ms": 2000.0}
    assert by_action["model.roll-back"]["change"] == {"split": {"1": 100}}
    assert by_action["policy.change"]["change"] == {"policy": "first-fit"}
    assert by_action["node.drain"]["change"] == {"deadline_s": 60}
    assert by_action["model.remove"]["actor"] == {"name": "deputy", "key_id": key["id"], "session": False, "address": "127.0.0.1"}
    assert by_action["key.delete"]["actor"] == {"name": "admin", "key_id": None, "session": False, "address": "127.0.0.1"}
    text = json.dumps(entries(cluster))
    assert token not in text and key["key"] not in text and rotated["key"] not in text


def test_what_is_refused_or_changes_nothing_is_no_act(new_cluster: MakeCluster):
    cluster = new_cluster()
    digest = cluster.admin.upload(b"the file")
    registration = {**models.simulated("m"), "artifact": digest}
    call(cluster, 201, "POST", "/v1/models", registration)
    call(cluster, 409, "POST", "/v1/models", registration)
    call(cluster, 400, "PATCH", "/v1/models/m", {"slo_ms": 0})
    call(cluster, 404, "DELETE", "/v1/models/n")
    call(cluster, 404, "POST", "/v1/nodes/node1/cordon")
    call(cluster, 401, "DELETE", "/v1/models/m", token="guessed")
    call(cluster, 200, "POST", "/v1/plans/preview", {"policy": "first-fit"})
    assert [entry["action"] for entry in entries(cluster)] == ["model.register", "artifact.store"]


def test_a_session_acts_for_the_owner_of_its_key(new_cluster: MakeCluster):
    cluster = new_cluster()
    body = json.dumps({"token": cluster.admin.token}).encode()
    headers = {"content-type": "application/json"}
    answer = request(cluster.admin_address, "POST", "/v1/session", body, headers)
    assert answer.status == 201, answer
    cookie = answer.headers["set-cookie"].split(";")[0]
    headers |= {"cookie": cookie, "x-packhorse-csrf": "1"}
    answer = request(cluster.admin_address, "PUT", "/v1/policy", b'{"policy": "usher"}', headers)
    assert answer.status == 200, answer
    (entry,) = entries(cluster)
    assert entry["actor"] == {"name": "admin", "key_id": None, "session": True, "address": "127.0.0.1"}


def test_the_log_is_read_in_pages_and_outlives_the_gateway(new_cluster: MakeCluster):
    cluster = new_cluster()
    for policy in ("usher", "nexus", "first-fit"):
        call(cluster, 200, "PUT", "/v1/policy", {"policy": policy})
    cluster.gateway.kill()
    cluster.start_gateway()
    newest, middle = entries(cluster, "?limit=2")
    assert (newest["change"], middle["change"]) == ({"policy": "first-fit"}, {"policy": "nexus"})
    (oldest,) = entries(cluster, f"?before={middle['id']}")
    assert oldest["change"] == {"policy": "usher"}
    assert oldest["at_ms"] <= middle["at_ms"] <= newest["at_ms"]
    assert "limit" in call(cluster, 400, "GET", "/v1/audit?limit=0").error
