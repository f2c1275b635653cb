"""Models that share a ResNet50 with random weights, and what one of them answers.

    python xtask/src/bench/backbone.py export FOLDER HEADS
    python xtask/src/bench/backbone.py ask ADDRESS MODEL ANSWER

The first writes `head-N.pt` for each head, the second the bytes that the model answers to a batch of eight images.
"""

import sys
from pathlib import Path

import numpy as np


def export(folder: Path, heads: int) -> None:
    import torch
    from torchvision.models import resnet50

    torch.manual_seed(1)
    network = resnet50(weights=None).eval()
    features = network.fc.in_features
    for head in range(heads):
        network.fc = torch.nn.Linear(features, 100)
        torch.jit.script(network).save(str(folder / f"head-{head}.pt"))


def ask(address: str, model: str, answer: Path) -> None:
    from tritonclient.http import InferenceServerClient, InferInput

    images = np.random.default_rng(1).random((8, 3, 224, 224), np.float32)
    tensor = InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    client = InferenceServerClient(address, network_timeout=60.0, connection_timeout=60.0)
    logits = client.infer(model, [tensor]).as_numpy("logits")
    assert logits.shape == (8, 100) and np.isfinite(logits).all()
    answer.write_bytes(logits.tobytes())


if sys.argv[1] == "export":
    export(Path(sys.argv[2]), int(sys.argv[3]))
else:
    ask(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
