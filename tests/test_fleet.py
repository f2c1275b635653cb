"""`packhorse apply`: a folder of 200 models applied, changed, drifted from and pruned, with a wrong file among them."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import models
import pytest
from cluster import PROGRAMS, Cluster, wait_until
from conftest import simulated_devices

MODELS = 200


class Apply:
    """The command with a folder of files and the addresses of a gateway."""

    def __init__(self, cluster: Cluster, folder: Path):
        self.folder = folder
        self.command = [str(PROGRAMS / "packhorse"), "apply", "-f", str(folder)]
        self.command += ["--admin-url", f"http://{cluster.admin_address}", "--token-file", str(cluster.state / "admin-token")]

    def run(self, *flags: str, expected: int = 0) -> subprocess.CompletedProcess:
        done = subprocess.run([*self.command, *flags], capture_output=True, text=True, timeout=300)
        assert done.returncode == expected, (flags, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def json(self, *flags: str, expected: int = 0) -> dict:
        return json.loads(self.run(*flags, "--json", expected=expected).stdout)

    def write(self, name: str, value) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))

    def edit(self, name: str, **fields) -> None:
        self.write(name, {**json.loads((self.folder / name).read_text()), **fields})

    def add_model(self, path: str, versions: int = 1, **fields) -> None:
        """A model at this path, whose versions have different tiny programs."""
        registration = {key: value for key, value in models.simulated(path.rsplit("/", 1)[-1], **fields).items() if key not in ("name", "version")}
        self.write(f"{path}/model.json", registration)
        for version in range(1, versions + 1):
            self.add_version(path, version)

    def add_version(self, path: str, version: int) -> None:
        file = self.folder / path / str(version) / "model.pt"
        file.parent.mkdir(parents=True)
        file.write_text(f"the program of {path}:{version}")


def summary(report: dict) -> dict[str, int]:
    """The number of changes by what is done, of those that are done where something may be."""
    counts: dict[str, int] = {}
    for change in report["changes"]:
        counts[change["action"]] = counts.get(change["action"], 0) + 1
    return counts


def path_of(number: int) -> str:
    """Every second model lies in a folder of a team."""
    return f"m{number:03}" if number % 2 else f"team{number % 8}/m{number:03}"


@pytest.fixture
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = new_cluster("--lease-ms", "1500")
    cluster.start_agent("node1", *simulated_devices(cluster, {f"m{number:03}": 2.0 for number in range(MODELS)}, devices=8))
    return cluster


@pytest.fixture
def apply(cluster: Cluster, tmp_path: Path) -> Apply:
    (tmp_path / "fleet").mkdir()
    return Apply(cluster, tmp_path / "fleet")


def test_two_hundred_models_are_applied_changed_and_pruned(cluster: Cluster, apply: Apply):
    for number in range(MODELS):
        apply.add_model(path_of(number), rate_rps=0.1)
    wrong = f"{path_of(7)}/model.json"
    right = (apply.folder / wrong).read_text()
    apply.edit(wrong, max_batch_size="four")

    # Nothing is there yet, and a dry run leaves it so.
    plan = apply.json("--dry-run", expected=1)
    assert summary(plan) == {"create": MODELS - 1}
    assert [problem["place"] for problem in plan["problems"]] == [f"{path_of(7)}/1"]
    assert "max_batch_size" in plan["problems"][0]["problem"], plan["problems"]
    assert cluster.admin.get("/v1/models") == []
    assert cluster.admin.get("/v1/artifacts") == []

    begin = time.monotonic()
    applied = apply.json("--yes", expected=1)
    first_s = time.monotonic() - begin
    assert applied["done"] == MODELS - 1 and len(applied["problems"]) == 1
    assert len(cluster.admin.get("/v1/models")) == MODELS - 1
    (apply.folder / wrong).write_text(right)
    assert apply.json("--yes")["done"] == 1, "the file that was wrong alone"

    begin = time.monotonic()
    again = apply.json("--dry-run", "--exit-code")
    compare_s = time.monotonic() - begin
    assert (again["changes"], again["unchanged"]) == ([], MODELS)

    # Fields of three, a version of one, and its split.
    for number in (1, 2, 3):
        apply.edit(f"{path_of(number)}/model.json", slo_ms=150 + number, priority=7)
    apply.add_version(path_of(4), 2)
    apply.write(f"{path_of(4)}/split.json", {"split": {"1": 90, "2": 10}, "sticky": "request-id"})
    apply.json("--dry-run", "--exit-code", expected=4)
    begin = time.monotonic()
    changed = apply.json("--yes")
    change_s = time.monotonic() - begin
    assert summary(changed) == {"create": 1, "change": 4}
    fields = {change["subject"]: [field["field"] for field in change["fields"]] for change in changed["changes"]}
    assert fields["model m001:1"] == ["priority", "slo_ms"], fields
    assert fields["model m004:2"] == [] and fields["model m004"] == ["split", "sticky"]
    assert cluster.admin.get("/v1/models/m002")["slo_ms"] == 152
    assert cluster.admin.get("/v1/models/m004")["split"] == {"1": 90, "2": 10}
    assert apply.json("--yes")["changes"] == []

    # By hand: a field, a split, and a model that no file names.
    assert cluster.admin.call("PATCH", "/v1/models/m005", {"slo_ms": 55}).status == 200
    assert cluster.admin.call("PATCH", "/v1/models/m004", {"split": {"2": 100}}).status == 200
    cluster.admin.register(models.simulated("by-hand"), b"by hand")
    drift = apply.json("--dry-run", "--exit-code", expected=4)
    assert {(change["subject"], field["field"], json.dumps(field["old"]), json.dumps(field["new"])) for change in drift["changes"] for field in change["fields"]} == {
        ("model m005:1", "slo_ms", "55.0", json.dumps(float(models.simulated("x")["slo_ms"]))),
        ("model m004", "split", '{"2": 100}', '{"1": 90, "2": 10}'),
    }
    assert drift["unnamed"] == ["by-hand"]
    shown = apply.run("--dry-run").stdout
    assert "m005:1" in shown and "slo_ms" in shown and "1 not in the files" in shown, shown
    apply.run("--yes")
    assert cluster.admin.get("/v1/models/by-hand")["name"] == "by-hand", "it is left alone"

    # Half of the files go, and so do their models; one whose file is wrong stays.
    for number in range(100, MODELS):
        shutil.rmtree(apply.folder / path_of(number))
    (apply.folder / wrong).write_text("{")
    begin = time.monotonic()
    pruned = apply.json("--yes", "--prune", expected=1)
    prune_s = time.monotonic() - begin
    assert summary(pruned) == {"remove": 101}
    left = {model["name"] for model in cluster.admin.get("/v1/models")}
    assert left == {f"m{number:03}" for number in range(100)}
    print(
        f"apply: {MODELS - 1} models {first_s:.1f} s, compared {compare_s:.1f} s, 5 changes {change_s:.1f} s, 101 removed {prune_s:.1f} s"
    )


def test_versions_keys_nodes_and_the_policy_are_declared(cluster: Cluster, apply: Apply):
    apply.add_model("m000", versions=2)
    stored = cluster.admin.upload(b"from object storage")
    apply.write("m000/3/version.json", {"artifact": stored, "slo_ms": 321})
    key = cluster.admin.call("POST", "/v1/keys", {"name": "shop", "scopes": ["infer:*"], "rate_rps": 5}).json()
    apply.write("keys.json", [{"name": "shop", "rate_rps": 50, "max_in_flight": 4}, {"name": "nobody", "rate_rps": 1}])
    apply.write("nodes.json", {"node1": "cordoned"})
    apply.write("policy.json", {"policy": "first-fit"})
    applied = apply.json("--yes", expected=1)
    assert [problem["place"] for problem in applied["problems"]] == ["keys.json"]
    assert "nobody" in applied["problems"][0]["problem"]
    assert [change["subject"] for change in applied["changes"]] == [
        "policy",
        "model m000:1",
        "model m000:2",
        "model m000:3",
        f"key shop ({key['id']})",
        "node node1",
    ]
    assert cluster.admin.get("/v1/models/m000")["artifact"] == stored
    slos = {view["version"]: view["slo_ms"] for view in cluster.admin.get("/v1/models")}
    assert slos[3] == 321 and slos[1] == slos[2] != 321
    limits = cluster.admin.get(f"/v1/keys/{key['id']}")
    assert (limits["rate_rps"], limits["max_in_flight"]) == (50, 4)
    assert cluster.admin.get("/v1/nodes")[0]["state"] == "cordoned"
    assert cluster.admin.get("/v1/policy")["policy"] == "first-fit"
    acts = {entry["action"] for entry in cluster.admin.get("/v1/audit")}
    assert {"key.change", "node.cordon", "policy.change", "model.register"} <= acts

    # Without the file that is wrong in one entry everything is as declared.
    apply.write("keys.json", [{"name": "shop", "rate_rps": 50}])
    apply.json("--dry-run", "--exit-code")


def test_a_limit_is_named_and_the_other_models_are_applied(cluster: Cluster, apply: Apply):
    apply.add_model("m000", slo_ms=90_000)
    apply.add_model("m001")
    apply.add_model("m002", versions=0)
    apply.add_model("one/m003")
    apply.add_model("two/m003")
    for flags in (["--dry-run"], ["--yes"]):
        report = apply.json(*flags, expected=1)
        problems = {problem["place"]: problem["problem"] for problem in report["problems"]}
        assert len(problems) == 3, problems
        said = next(text for place, text in problems.items() if "m000" in place)
        assert "slo_ms" in said and "60000" in said, said
        assert "there is no version" in problems["m002"]
        assert "one/m003" in problems["two/m003"] and "neither is applied" in problems["two/m003"]
    assert [model["name"] for model in cluster.admin.get("/v1/models")] == ["m001"]
    nothing = apply.folder.parent / "nothing"
    nothing.mkdir()
    apply.command[apply.command.index("-f") + 1] = str(nothing)
    assert "names no model" in apply.run("--prune", "--yes", expected=1).stderr
    assert [model["name"] for model in cluster.admin.get("/v1/models")] == ["m001"]


def test_a_killed_apply_continues_and_two_at_once_converge(cluster: Cluster, apply: Apply):
    for number in range(60):
        apply.add_model(path_of(number), rate_rps=0.1)
    killed = subprocess.Popen([*apply.command, "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: cluster.admin.get("/v1/models"), "the first model")
    killed.kill()
    killed.wait(10)
    there = len(cluster.admin.get("/v1/models"))
    both = [
        subprocess.Popen([*apply.command, "--yes", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert 0 < there < 60, "it was killed in the middle"
    again = apply.json("--dry-run", "--exit-code")
    assert (again["changes"], again["unchanged"]) == ([], 60)


def test_without_a_terminal_no_goodput_is_taken_from_others(new_cluster: Callable[..., Cluster], tmp_path: Path):
    """One device's worth of a model, and another that takes it all by its priority."""
    cluster = new_cluster("--lease-ms", "1500")
    # Each of them fills the device alone.
    profiles = models.profiles(cluster.folder, {"m000": 2.0, "m001": 2.0}, used="95")
    cluster.start_agent("node1", "--devices", "simulated:V100-SXM2-16GB:1", "--profiles", str(profiles))
    (tmp_path / "fleet").mkdir()
    apply = Apply(cluster, tmp_path / "fleet")
    cluster.admin.register(models.simulated("m000", rate_rps=3000), b"the file of m000")
    cluster.admin.wait_for_state("m000", "ready")
    apply.add_model("m001", rate_rps=1, priority=9)
    apply.run("--yes")
    cluster.admin.wait_for_state("m001", "ready")
    apply.edit("m001/model.json", rate_rps=100_000)
    refused = apply.run(expected=3)
    assert "m000" in refused.stderr and "--yes" in refused.stderr, refused.stderr
    assert cluster.admin.get("/v1/models/m001")["rate_rps"] == 1
    shown = apply.run("--dry-run")
    assert "m000" in shown.stderr and "rate_rps" in shown.stdout, shown
    apply.run("--yes")
    assert cluster.admin.get("/v1/models/m001")["rate_rps"] == 100_000
