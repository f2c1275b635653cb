"""`packhorse-lab bench` against a real gateway with simulated devices."""

import json
import subprocess
from collections.abc import Callable

from cluster import PROGRAMS, Cluster

MakeCluster = Callable[..., Cluster]

SCENARIO = """
name = "live"
profiles = ["profiles.csv"]
[[devices]]
kind = "V100-SXM2-16GB"
count = 1
[[models]]
name = "m"
rate_rps = 100
slo_ms = {slo_ms}
[[models]]
name = "n"
rate_rps = 50
slo_ms = {slo_ms}
requests = 80
[simulation]
warmup_s = 0.5
window_s = 1.5
"""


def bench(cluster: Cluster, *flags: str, slo_ms: float = 500) -> subprocess.CompletedProcess:
    scenario = cluster.folder / "live.toml"
    scenario.write_text(SCENARIO.format(slo_ms=slo_ms))
    command = [str(PROGRAMS / "packhorse"), "bench", "--scenario", str(scenario), "--url", f"http://{cluster.inference}"]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)


def test_a_scenario_is_driven_against_a_live_gateway(simulated: MakeCluster):
    cluster = simulated({"m": 5, "n": 10})
    admin = ["--admin-url", f"http://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token")]
    done = bench(cluster, "--seed", "3", "--json", *admin)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["scenario"], report["seed"], report["discipline"]) == ("live", 3, "deadline")
    assert {replica["model"] for replica in report["plan"]["replicas"]} == {"m", "n"}
    m, n = report["models"]
    assert (m["name"], n["name"]) == ("m", "n")
    # As many as a simulation of the same seed has: 100 a second for two seconds, and the 80 that are asked for.
    assert 180 <= report["client"]["sent"] - 80 <= 220
    assert report["client"]["failures"] == {}
    for model in (m, n):
        assert model["goodput_rps"] > 0.9 * model["offered_rps"]
        assert model["dropped"] == 0
        assert 5 <= model["latency_ms"]["p50"] <= model["latency_ms"]["p99"]
        assert 1 <= model["mean_batch"] <= 8
    # In the same units: simulated and measured offer the same.
    simulate = [str(PROGRAMS / "packhorse"), "simulate", "--scenario", str(cluster.folder / "live.toml")]
    done = subprocess.run([*simulate, "--seed", "3", "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["models"][0]["offered_rps"] == m["offered_rps"]


def test_requests_that_cannot_make_their_deadline_are_dropped_not_failed(simulated: MakeCluster):
    cluster = simulated({"m": 40, "n": 40})
    done = bench(cluster, "--json", slo_ms=20)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["client"]["failures"] == {}
    assert report["totals"]["goodput_rps"] == 0
    assert report["totals"]["dropped"] > 0
    assert (report["plan"], report["discipline"]) == (None, None)


def test_a_model_that_is_not_there_is_named(simulated: MakeCluster):
    cluster = simulated({"m": 5})
    (cluster.folder / "profiles.csv").write_text((cluster.folder / "profiles.csv").read_text() + "n,V100-SXM2-16GB,1,,5,,500,30,30,30\n")
    done = bench(cluster)
    assert done.returncode == 1
    assert "models[1] is n:1" in done.stderr


def load(cluster: Cluster, *flags: str) -> dict:
    """Sends requests to the model `m` for a second, and returns the report."""
    command = [str(PROGRAMS / "packhorse"), "bench", "m", "--url", f"http://{cluster.inference}", "--duration", "1", "--warm-up", "0.2"]
    done = subprocess.run([*command, *flags, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_stages_of_a_load_add_up_to_its_latency(simulated: MakeCluster):
    cluster = simulated({"m": 5})
    admin = ["--admin-url", f"http://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token")]
    report = load(cluster, "--rate", "50", "--arrivals", "uniform", "--stages", *admin)
    # 50 a second from 0.2 to 1.2 s, the last of which are due when the load ends.
    assert report["requests"]["answered"] == report["requests"]["all"] in (49, 50)
    assert report["slo_ms"] == json.loads(subprocess.run(
        [str(PROGRAMS / "packhorse"), *admin, "model", "list", "--json"], capture_output=True, text=True, timeout=60).stdout)[0]["slo_ms"]
    stages = {stage["stage"]: stage["mean_ms"] for stage in report["stages"]}
    # The simulated device computes for 5 ms.
    assert stages["compute"] >= 5
    assert abs(sum(stages.values()) / report["latency_ms"]["mean"] - 1) < 0.02


def test_a_load_with_a_deadline_that_nobody_can_make_is_refused_or_expires(simulated: MakeCluster):
    cluster = simulated({"m": 40})
    command = [str(PROGRAMS / "packhorse"), "bench", "m", "--url", f"http://{cluster.inference}", "--deadline", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the first request: " in done.stderr
    # Eight clients of a device that answers 200 batches a second: most of them in time.
    report = load(simulated({"m": 5}), "--concurrency", "8", "--deadline", "100")
    counts = report["requests"]
    assert counts["answered"] > 0
    assert counts["failed"] == counts["lost"] == 0
    assert counts["all"] == counts["answered"] + counts["refused"] + counts["expired"]
