"""Writes the operators of published architectures, to which the coefficients of crates/estimator are fitted: thesis.jsonl, clockwork.jsonl.

    .venv/bin/python profiles/operators/export.py --worker target/debug/packhorse-worker

Each model is traced with random weights, since only shapes count, and `packhorse-worker inspect` reads the trace. The thesis' models are
those of lab/gpu-check/python/models.py. Prints the size of the parameters beside the published one.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab/gpu-check/python"))

import architectures  # noqa: E402
import models  # noqa: E402


class Gelu(nn.Module):
    """BLOOM's own GELU, operator by operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Caching(nn.Module):
    """A decoder as transformers runs it by default: it also returns the keys and values of all layers, which therefore stay in memory."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.transformer, self.head, self.decodes = classifier.transformer, classifier.head, classifier.decodes

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`input_ids`: int64 [batch, tokens]. Returns float32 [batch, 2], then keys and values."""
        more = {"decoder_input_ids": input_ids} if self.decodes else {}
        out = self.transformer(input_ids=input_ids, use_cache=True, return_dict=True, **more)
        cache = out.past_key_values
        caches = [cache.self_attention_cache, cache.cross_attention_cache] if self.decodes else [cache]
        kept = [tensor for one in caches for layer in one.layers for tensor in (layer.keys, layer.values)]
        return self.head(out.last_hidden_state.mean(1)), *kept


def thesis(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Makes a model of the thesis, and an input of two rows."""
    if name not in models.LANGUAGE:
        return architectures.torchvision(name), torch.zeros(2, 3, 224, 224)
    made = models.language(name, tiny=False)
    if name == "bert":
        # The only one of them with an attention in one kernel in the transformers of mid-2024. The published memory of a row is less than its scores would take.
        made.module.transformer.set_attn_implementation("sdpa")
    if name == "bloom_560":
        for block in made.module.transformer.h:
            block.mlp.gelu_impl = Gelu()
    caches = name in ("bloom_560", "gpt2", "t5")
    return Caching(made.module) if caches else made.module, made.inputs(2)


def clockwork(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Makes a model of Clockwork's zoo, and an input of two rows."""
    side = architectures.side(name)
    return architectures.CLOCKWORK[name](), torch.zeros(2, 3, side, side)


def inspect(worker: Path, module: nn.Module, example: torch.Tensor, folder: Path) -> dict:
    """Returns the operators of a module."""
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), example, strict=False, check_trace=False)
    torch.jit.save(traced, str(folder / "model.pt"))
    datatype = "INT64" if example.dtype == torch.int64 else "FP32"
    inputs = [{"name": "x", "datatype": datatype, "shape": [-1, *example.shape[1:]]}]
    (folder / "model.json").write_text(json.dumps({"max_batch_size": 128, "inputs": inputs, "outputs": []}))
    command = [worker, "inspect", "--model", folder / "model.pt", "--signature", folder / "model.json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", type=Path, required=True, help="packhorse-worker")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with (ROOT / "profiles/sources/clockwork-appendix-a.csv").open() as file:
        published = {row["model"]: float(row["weights_mb"]) for row in csv.DictReader(file)}
    sets = {"thesis": (thesis, models.VISION + models.LANGUAGE), "clockwork": (clockwork, tuple(architectures.CLOCKWORK))}
    for title, (make, names) in sets.items():
        with tempfile.TemporaryDirectory() as folder, Path(__file__).with_name(f"{title}.jsonl").open("w") as out:
            for name in sorted(names):
                graph = inspect(given.worker.resolve(), *make(name), Path(folder))
                out.write(json.dumps({"model": name, "graph": graph}, separators=(",", ":")) + "\n")
                size = published.get(name) if title == "clockwork" else None
                print(f"{title} {name}: {graph['parameter_bytes'] / 1e6:.1f} MB, published {size}", flush=True)


if __name__ == "__main__":
    main()
