"""Measures what a hit and a miss of the cache of predictions take; writes docs/benchmarks/prediction-cache.md.

    .venv/bin/python tests/prediction_cache_cost.py --write
"""

import argparse
import http.client
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import models
import numpy as np
import torchvision
import triton_clients
from cluster import BUILD, Cluster

REPORT = Path(__file__).parent.parent / "docs/benchmarks/prediction-cache.md"
CASES = ["without a cache", "a miss", "a hit"]
# The width of a picture of each model.
WIDTHS = {"convolutions": 32, "resnet18": 224}


def resnet18(folder: Path) -> models.Model:
    """`image` to `logits`."""
    given = models.registration("resnet18", [models.tensor("image", "FP32", [-1, 3, 224, 224])], [models.tensor("logits", "FP32", [-1, 1000])])
    return models.make(folder, torchvision.models.resnet18(), given)


def ask(connection: http.client.HTTPConnection, name: str, image: np.ndarray) -> tuple[float, str | None, float]:
    """The time of a request in milliseconds, what the cache had, and the time of looking there."""
    body, length = triton_clients.sync_client.InferenceServerClient.generate_request_body(triton_clients.tensors({"image": image}))
    headers = {"Inference-Header-Content-Length": str(length), "x-packhorse-stages": "1"}
    begun = time.perf_counter()
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    answer = connection.getresponse()
    read = answer.read()
    took = time.perf_counter() - begun
    assert answer.status == 200, read
    (lookup,) = (entry for entry in answer.headers["server-timing"].split(", ") if entry.startswith("lookup;"))
    return took * 1e3, answer.headers.get("x-packhorse-cache"), float(lookup.removeprefix("lookup;dur="))


def measure(cluster: Cluster, name: str, rounds: int) -> list[str]:
    """The rows of a table: each kind of request in turn."""
    generator = np.random.default_rng(3)

    def new() -> np.ndarray:
        return generator.standard_normal((1, 3, WIDTHS[name], WIDTHS[name]), dtype=np.float32)

    host, port = cluster.inference.split(":")
    connection = http.client.HTTPConnection(host, int(port))
    same, found = new(), {case: [] for case in CASES}
    ask(connection, name, same)
    for _ in range(rounds):
        for case, expected, model, image in zip(CASES, [None, "miss", "hit"], [f"{name}-uncached", name, name], [new(), new(), same], strict=True):
            took, cache, lookup = ask(connection, model, image)
            assert cache == expected, (case, cache)
            found[case].append((took, lookup))
    connection.close()
    rows = []
    for case, times in found.items():
        took, lookups = zip(*times, strict=True)
        rows.append(f"| {name}, {same.nbytes:,} bytes | {case} | {statistics.median(took):.2f} | {statistics.quantiles(took, n=20)[-1]:.2f} | {statistics.median(lookups):.3f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="number of requests of each kind")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start_agent("node1", "--devices", "cpu")
            made = [models.convolutions(Path(folder)), resnet18(Path(folder))]
            for model in made:
                cluster.admin.register(model.registration | {"cache": True}, model.file)
                cluster.admin.register(model.registration | {"name": f"{model.name}-uncached"}, model.file)
            for model in made:
                for name in (model.name, f"{model.name}-uncached"):
                    cluster.admin.wait_for_state(name, "ready", limit=300)
            for model in made:
                rows += measure(cluster, model.name, given.rounds)
                print(*rows[-len(CASES) :], sep="\n", flush=True)
        finally:
            cluster.close()
    if given.write:
        head = "| | | p50, ms | p95, ms | of it looking, p50, ms |\n|---|---|--:|--:|--:|"
        REPORT.write_text(f"""# The cache of predictions

Made by `.venv/bin/python tests/prediction_cache_cost.py --write` on {os.cpu_count()} cores, {platform.system()} {platform.release()}, with the {BUILD} build; the load average at the end was {os.getloadavg()[0]:.1f}.

One client with one kept connection sends one row at a time as a binary tensor, {given.rounds} times each kind in turn; the times are the client's, in Python.
A request without a cache and a miss have a new input each, a hit has always the same.
The models compute on the CPU that client and gateway use, too.

{head}
{chr(10).join(rows)}

Looking is the hash of the inputs, SHA-256, and the look into the table.
From 256 KiB on another thread hashes, whose turn has to come.
""")


if __name__ == "__main__":
    main()
