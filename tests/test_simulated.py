"""Whole clusters on one machine: simulated devices, real processes and sockets."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import models
import pytest
from cluster import Cluster, processes_of, wait_until
from conftest import simulated_devices
from http_admin import request
from load import REQUEST, Load

MakeCluster = Callable[..., Cluster]


def test_a_batch_takes_as_long_as_its_profile_says_and_answers_what_is_declared(simulated: MakeCluster):
    cluster = simulated({"m": 80})
    start = time.monotonic()
    answer = request(cluster.inference, "POST", "/v2/models/m/infer", REQUEST)
    took = time.monotonic() - start
    assert answer.status == 200, answer
    (output,) = answer.json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [1, 2])
    assert len(output["data"]) == 2
    assert took >= 0.08


def test_two_nodes_of_four_devices_serve_six_models(new_cluster: MakeCluster):
    latencies = {f"m{number}": 5 + number for number in range(6)}
    cluster = new_cluster()
    flags = simulated_devices(cluster, latencies, devices=4)
    for node in ("node1", "node2"):
        cluster.start_agent(node, *flags)
    for name in latencies:
        cluster.admin.register(models.simulated(name, rate_rps=100), name.encode())
    for name in latencies:
        cluster.admin.wait_for_state(name, "ready")
    loads = [Load(cluster.inference, name, clients=2) for name in latencies]
    for load in loads:
        load.__enter__()
    wait_until(lambda: all(load.answered() >= 50 for load in loads), "fifty answers of every model")
    for load in loads:
        load.__exit__()
        assert load.counts().keys() == {200}, load.counts()
    nodes = cluster.admin.get("/v1/nodes")
    assert sorted(node["name"] for node in nodes) == ["node1", "node2"]
    assert all(len(node["devices"]) == 4 for node in nodes)
    planned = cluster.admin.get("/v1/plan")["replicas"]
    workers = [name for name in processes_of(cluster.folder).values() if name == "packhorse-worker"]
    assert len(workers) == len(planned) >= 6


def test_logs_are_one_flat_json_object_per_line_where_that_is_asked_for(new_cluster: MakeCluster):
    cluster = new_cluster("--log-format", "json")
    flags = simulated_devices(cluster, {"m": 5})
    agent = cluster.start_agent("node1", *flags, "--log-format", "json")
    cluster.admin.register(models.simulated("m"), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")
    agent.stop()
    cluster.gateway.stop()
    for log in (cluster.gateway.log, agent.log):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert lines, f"{log} is empty"
        for line in lines:
            assert {"timestamp", "level", "target", "message"} <= line.keys(), line


def test_exclusive_gives_every_replica_a_device_of_its_own(new_cluster: MakeCluster):
    cluster = new_cluster("--policy", "exclusive")
    latencies = {"m": 5, "n": 5, "o": 5}
    cluster.start_agent("node1", *simulated_devices(cluster, latencies, devices=2))
    for name in latencies:
        cluster.admin.register(models.simulated(name), name.encode())
    states = lambda: sorted(view["state"] for view in cluster.admin.get("/v1/models"))
    wait_until(lambda: states() == ["ready", "ready", "unplaced"], "two models to be served and one to be left out")
    devices = [replica["device"] for replica in cluster.admin.get("/v1/plan")["replicas"]]
    assert len(devices) == len(set(devices)) == 2
    (left_out,) = [view for view in cluster.admin.get("/v1/models") if view["state"] == "unplaced"]
    assert left_out["reason"]
    explained = {model["name"]: model["explanation"] for model in cluster.admin.get("/v1/plan?explain=true")["models"]}
    why = explained.pop(left_out["name"])
    assert why["bound"] == {"by": "device-time"} and why["complete"]
    more = {"change": "add-devices", "kind": "V100-SXM2-16GB", "count": 1, "served_fraction": 1.0}
    assert more in [{**remedy, "served_fraction": round(remedy["served_fraction"])} for remedy in why["remedies"]], why
    assert all(other["bound"] == {"by": "rate"} for other in explained.values()), explained


def test_replicas_with_a_duty_cycle_compute_one_batch_of_a_device_at_a_time(simulated: MakeCluster):
    cluster = simulated({"m": 400, "n": 400}, "--policy", "nexus", rate_rps=1)
    replicas = cluster.admin.get("/v1/plan")["replicas"]
    assert len(replicas) == 2 and all(replica["duty_cycle_ms"] > 0 for replica in replicas), replicas

    def both() -> float:
        start = time.monotonic()
        with ThreadPoolExecutor(2) as threads:
            ask = lambda name: request(cluster.inference, "POST", f"/v2/models/{name}/infer", REQUEST).status
            assert list(threads.map(ask, ("m", "n"))) == [200, 200]
        return time.monotonic() - start

    assert both() >= 0.8, "one after the other"
    # Without, they are at the device at the same time, which is no other for that: it is simulated by two processes.
    assert cluster.admin.call("PUT", "/v1/policy", {"policy": "first-fit"}).status == 200
    wait_until(lambda: cluster.admin.get("/v1/plan")["policy"] == "first-fit", "the other plan")
    cluster.admin.wait_for_state("m", "ready")
    wait_until(lambda: both() < 0.8, "them to compute at the same time")


def test_a_crowd_that_asks_for_previews_is_turned_away_and_disturbs_nobody(simulated: MakeCluster):
    cluster = simulated({"m": 10, "n": 10}, "--solve-budget-ms", "1000")
    # More than all these devices can serve: what it would take is looked for as long as planning may take.
    hard = {"explain": True, "models": [{"name": "m", "rate_rps": 1e6}], "devices": [{"kind": "T4", "count": 300}]}
    with Load(cluster.inference, "m", clients=2) as load, ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: cluster.admin.call("POST", "/v1/plans/preview", hard), range(50)))
        assert cluster.admin.get("/v1/plan")["generation"] >= 1
    assert {answer.status for answer in answers} == {200, 503}
    refused = [answer.error for answer in answers if answer.status == 503]
    assert all("run at once" in error for error in refused), refused
    assert load.counts().keys() == {200}, load.counts()


def test_a_new_model_disturbs_no_other(simulated: MakeCluster):
    cluster = simulated({"m": 10, "later": 10}, devices=1)
    assert cluster.admin.call("DELETE", "/v1/models/later").status == 200
    before = cluster.worker_pids("m")
    with Load(cluster.inference, "m", clients=2) as load:
        cluster.admin.register(models.simulated("later"), b"the file of later")
        cluster.admin.wait_for_state("later", "ready")
        assert cluster.admin.call("DELETE", "/v1/models/later").status == 200
    assert load.counts().keys() == {200}, load.counts()
    assert cluster.worker_pids("m") == before


def test_a_change_of_policy_replaces_replicas_without_a_gap(simulated: MakeCluster):
    cluster = simulated({"m": 10, "n": 10}, devices=2)
    with Load(cluster.inference, "m", clients=2) as load:
        assert cluster.admin.call("PUT", "/v1/policy", {"policy": "exclusive"}).status == 200
        moved = lambda: len({r["device"] for r in cluster.admin.get("/v1/plan")["replicas"]}) == 2
        wait_until(moved, "the new plan")
        settled = lambda: [v["state"] for v in cluster.admin.get("/v1/models")] == ["ready", "ready"]
        wait_until(settled, "the models to be ready")
    assert load.counts().keys() == {200}, load.counts()


def test_a_model_waits_for_a_node_and_says_so(new_cluster: MakeCluster):
    cluster = new_cluster()
    cluster.admin.register(models.simulated("m"), b"the file of m")
    view = cluster.admin.get("/v1/models/m")
    assert view["state"] in ("registered", "unplaced")
    cluster.start_agent("node1", *simulated_devices(cluster, {"m": 10}))
    cluster.admin.wait_for_state("m", "ready")


def test_a_cordoned_node_gets_nothing_new_and_a_drained_one_is_emptied(simulated: MakeCluster):
    cluster = simulated({"m": 10})
    cluster.start_agent("node2", *cluster.agent_flags)
    assert cluster.admin.call("POST", "/v1/nodes/node1/drain").status in (200, 204)
    with Load(cluster.inference, "m", clients=2) as load:
        on_node2 = lambda: all(r["device"].startswith("node2/") for r in cluster.admin.get("/v1/models/m")["replicas"])
        wait_until(on_node2, "the replica to move")
    assert load.counts().keys() == {200}, load.counts()


def test_an_agent_with_a_wrong_token_is_turned_away(new_cluster: MakeCluster, tmp_path):
    cluster = new_cluster()
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong\n")
    csv = models.profiles(tmp_path, {"m": 1})
    with pytest.raises(AssertionError):
        cluster.start_agent(
            "node1", "--devices", "simulated:V100-SXM2-16GB:1", "--profiles", str(csv), "--token-file", str(wrong)
        )
    assert cluster.admin.get("/v1/nodes") == []


def test_the_metadata_of_a_simulated_model_is_that_of_any_other(simulated: MakeCluster):
    cluster = simulated({"m": 1})
    metadata = json.loads(request(cluster.inference, "GET", "/v2/models/m").body)
    assert metadata["inputs"] == [models.tensor("x", "FP32", [-1, 4])]


def test_a_worker_link_that_others_can_reach_wants_a_secret(new_cluster: MakeCluster):
    cluster = new_cluster()
    with pytest.raises(AssertionError, match="secret"):
        cluster.start_agent("node1", *simulated_devices(cluster, {"m": 1}), "--listen-address", "0.0.0.0")


def test_gateway_and_workers_that_share_a_secret_talk_and_others_do_not(new_cluster: MakeCluster, tmp_path):
    secrets = {name: tmp_path / name for name in ("ours", "theirs")}
    for name, file in secrets.items():
        file.write_text(f"{name}-0123456789abcdef\n")
    cluster = new_cluster("--link-secret-file", str(secrets["ours"]))
    devices = simulated_devices(cluster, {"m": 10})
    cluster.start_agent("node1", *devices, "--link-secret-file", str(secrets["theirs"]))
    cluster.admin.register(models.simulated("m"), b"the file of m")

    def refused() -> bool:
        view = cluster.admin.get("/v1/models/m")
        assert view["state"] != "ready", "the worker proved nothing"
        return view["state"] == "loading" and "handshake" in (view["reason"] or "") + str(view["replicas"])

    wait_until(refused, "the handshake to fail")
    assert cluster.agents["node1"].stop() == 0
    assert cluster.admin.call("DELETE", "/v1/models/m").status == 200
    cluster.start_agent("node1", *devices, "--link-secret-file", str(secrets["ours"]))
    cluster.admin.register(models.simulated("m"), b"the file of m")
    cluster.admin.wait_for_state("m", "ready")


MODELS = [f"model-{number:02}" for number in range(40)]
WEIGHTS_MIB = 400


def test_forty_models_share_a_simulated_device_with_room_for_ten(new_cluster: MakeCluster):
    cluster = new_cluster()
    csv = models.profiles(cluster.folder, dict.fromkeys(MODELS, 5), memory_mib=WEIGHTS_MIB, used="")
    device = ["--devices", "simulated:V100-SXM2-16GB:1", "--device-memory", "sim0=4000MiB", "--profiles", str(csv)]
    cluster.start_agent("node1", *device)
    for name in MODELS:
        cluster.admin.register(models.simulated(name, rate_rps=1, slo_ms=1000), name.encode())
    for name in MODELS:
        cluster.admin.wait_for_state(name, "ready")
    workers = [name for name in processes_of(cluster.folder).values() if name == "packhorse-worker"]
    assert len(workers) == 1, "they share a process"

    def weights() -> dict[str, dict]:
        replicas = {name: cluster.admin.get(f"/v1/models/{name}")["replicas"] for name in MODELS}
        return {name: replica["weights"] for name, (replica,) in replicas.items()}

    before = weights()
    places = [place["residency"] for place in before.values()]
    assert (places.count("resident"), places.count("warm")) == (10, 30), before
    # 400 MiB at 12 GB/s.
    assert all(30 < place["load_ms"] < 40 for place in before.values()), before
    ask = lambda name: request(cluster.inference, "POST", f"/v2/models/{name}/infer", REQUEST).status
    for _ in range(2):
        assert {name: ask(name) for name in MODELS} == dict.fromkeys(MODELS, 200)
    after = weights()
    assert [place["residency"] for place in after.values()].count("resident") <= 10, after
    # Those that were used last are there.
    assert all(after[name]["residency"] == "resident" for name in MODELS[-9:]), after
    assert cluster.admin.metric("packhorse_weights_loads_total") >= 60
    assert cluster.admin.metric("packhorse_weights_resident_bytes") <= 4000 << 20
