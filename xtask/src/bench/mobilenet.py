"""Writes mobilenet_v2 with random weights as TorchScript, and as an AOTInductor package for batches of 1 and 8 images if it gets a second path.

    python xtask/src/bench/mobilenet.py model.pt [model.pt2]
"""

import sys
from pathlib import Path

import torch
from torchvision.models import mobilenet_v2

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
from export_package import export_package  # noqa: E402

torch.manual_seed(1)
network = mobilenet_v2(weights=None).eval()
images = torch.rand(2, 3, 224, 224)
torch.jit.script(network).save(sys.argv[1])
if len(sys.argv) > 2:
    export_package(network, (images,), Path(sys.argv[2]), 8, batch_sizes=(1, 8))
