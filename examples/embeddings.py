"""Sentences through `/v1/embeddings` beside the same model in a Python process, in turn: `python examples/embeddings.py http://127.0.0.1:8080 minilm FOLDER`.

FOLDER is the model's folder of Hugging Face, from which `packhorse export FOLDER models/minilm` made what is served.
The yardsticks are tokenizers and PyTorch in one process, a batch of 32 sentences at a time: in the order in which they are given, as a plain script does, and
sorted by their length, as sentence-transformers does.
"""

import argparse
import json
import statistics
import time
import urllib.request

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

WORDS = "the gateway decides which model runs on which device and how often it is asked for an answer within its objective".split()
ROUNDS = 7
BATCH = 32


def sentences(count: int, mixed: bool) -> list[str]:
    """Sentences of 20 words, or of 3 to 120."""
    lengths = [3 + i * 37 % 118 if mixed else 20 for i in range(count)]
    return [" ".join(WORDS[(i + k) % len(WORDS)] for k in range(length)) for i, length in enumerate(lengths)]


def served(url: str, model: str, texts: list[str]) -> list[list[float]]:
    body = json.dumps({"model": model, "input": texts}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return [item["embedding"] for item in json.load(answer)["data"]]


def computed(tokenizer, model: nn.Module, texts: list[str], are_sorted: bool) -> torch.Tensor:
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]) if are_sorted else i)
    found = torch.empty(len(texts), model.config.hidden_size)
    with torch.inference_mode():
        for begin in range(0, len(order), BATCH):
            batch = order[begin : begin + BATCH]
            tokens = tokenizer([texts[i] for i in batch], return_tensors="pt", padding=True, truncation=True, max_length=256)
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            found[batch] = nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "model", "folder"):
        parser.add_argument(name)
    given = parser.parse_args()
    tokenizer, model = AutoTokenizer.from_pretrained(given.folder), AutoModel.from_pretrained(given.folder).eval()
    print(f"{'texts':>6} {'lengths':>8} {'served/s':>9} {'plain/s':>9} {'ratio':>6} {'sorted/s':>9} {'ratio':>6} {'difference':>11}")
    for count in (8, 32, 128):
        for mixed in (False, True):
            texts = sentences(count, mixed)
            rates: dict[str, list[float]] = {"served": [], "plain": [], "sorted": []}
            for _ in range(ROUNDS):
                for name in ("plain", "sorted"):
                    begun = time.perf_counter()
                    theirs = computed(tokenizer, model, texts, name == "sorted")
                    rates[name].append(count / (time.perf_counter() - begun))
                begun = time.perf_counter()
                ours = served(given.url, given.model, texts)
                rates["served"].append(count / (time.perf_counter() - begun))
            difference = (torch.tensor(ours) - theirs).abs().max().item()
            line = f"{count:>6} {'mixed' if mixed else 'equal':>8} {statistics.median(rates['served']):>9.0f}"
            for name in ("plain", "sorted"):
                ratio = statistics.median(one / other for one, other in zip(rates["served"], rates[name], strict=True))
                line += f" {statistics.median(rates[name]):>9.0f} {ratio:>6.2f}"
            print(f"{line} {difference:>11.1e}", flush=True)


if __name__ == "__main__":
    main()
