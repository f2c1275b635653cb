"""Makes the models that gpu-check serves: the thesis' architectures from their configurations, with random weights.

    python models.py FOLDER --device cuda resnet50 bert

Writes FOLDER/NAME/model.pt (TorchScript) and FOLDER/NAME/model.json (a registration) for every name. With --rows, also writes an
input with this number of rows and the output of eager PyTorch: FOLDER/NAME/example-ROWS-input.bin and -output.bin, little-endian. A
model that cannot be made is left out; the last printed line is a JSON object of the missing names and the reasons.
"""

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

CLASSES = 1000
TOKENS = 512
TINY_TOKENS = 16
# A BERT configuration of a small network.
TINY_BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 1000}


@dataclass
class Made:
    """A module in evaluation mode, and a function that makes random inputs for a number of rows."""

    module: nn.Module
    inputs: Callable[[int], torch.Tensor]
    input_spec: dict
    output_spec: dict


class Classifier(nn.Module):
    """A transformer with a linear head over the mean of its last hidden states: sequences of token numbers to two scores."""

    def __init__(self, transformer: nn.Module, width: int, decodes: bool) -> None:
        super().__init__()
        self.transformer = transformer
        self.head = nn.Linear(width, 2)
        self.decodes = decodes

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`input_ids`: int64 [batch, tokens]. Returns float32 [batch, 2]."""
        more = {"decoder_input_ids": input_ids} if self.decodes else {}
        hidden = self.transformer(input_ids=input_ids, return_dict=False, **more)[0]
        return self.head(hidden.mean(1))


def language(name: str, tiny: bool) -> Made:
    """Makes one of the thesis' language models (its table 6.3), for sequences of 512 tokens."""
    import transformers as t

    t.logging.set_verbosity_error()
    more = {"attn_implementation": "eager"}
    cache = {"use_cache": False, **more}
    small = {"n_layer": 2, "n_head": 2, "vocab_size": 1000}
    configurations = {
        "bert": lambda: t.BertConfig(**(TINY_BERT if tiny else {}), **more),
        "gpt2": lambda: t.GPT2Config(**({"n_embd": 64, **small} if tiny else {}), **cache),
        "t5": lambda: t.T5Config(**({"d_model": 64, "d_ff": 128, "num_layers": 2, "vocab_size": 1000} if tiny else {}), **cache),
        "xlnet": lambda: t.XLNetConfig(
            **({"d_model": 64, "d_inner": 128, **small} if tiny else {"d_model": 768, "d_inner": 3072, "n_layer": 12, "n_head": 12}),
            use_mems_eval=False,
        ),
        "bloom_560": lambda: t.BloomConfig(
            **({"hidden_size": 64, **small} if tiny else {"hidden_size": 1024, "n_layer": 24, "n_head": 16}), **cache
        ),
    }
    config = configurations[name]()
    transformer = t.AutoModel.from_config(config)
    if name == "bloom_560":
        # Its own GELU is a Python function with its own derivative, which cannot be traced.
        for block in transformer.h:
            block.mlp.gelu_impl = nn.GELU(approximate="tanh")
    tokens = TINY_TOKENS if tiny else TOKENS
    return Made(
        Classifier(transformer, config.hidden_size, decodes=name == "t5").eval(),
        lambda rows: torch.randint(1, config.vocab_size, (rows, tokens)),
        {"name": "input_ids", "datatype": "INT64", "shape": [-1, tokens]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 2]},
    )


def vision(name: str, tiny: bool) -> Made:
    """Makes one of the thesis' vision models (its table 6.2), for images of 224 x 224."""
    from torchvision import models
    from torchvision.models.resnet import Bottleneck, ResNet

    more = {"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}
    if tiny and name in ("resnet50", "resnext50_32x4d"):
        module = ResNet(Bottleneck, [1, 1, 1, 1], width_per_group=16)
    elif tiny and name == "mobilenet_v2":
        module = models.mobilenet_v2(width_mult=0.25)
    else:
        module = models.get_model(name, weights=None, **more)
    side = (96 if name == "inception_v3" else 64) if tiny else 224

    def inputs(rows: int) -> torch.Tensor:
        return torch.randn(rows, 3, side, side)

    set_normalisation_statistics(module, inputs(8))
    return Made(
        module.eval(),
        inputs,
        {"name": "image", "datatype": "FP32", "shape": [-1, 3, side, side]},
        {"name": "logits", "datatype": "FP32", "shape": [-1, CLASSES]},
    )


def set_normalisation_statistics(module: nn.Module, images: torch.Tensor) -> None:
    """Sets the statistics of normalisations from random images: with the initial ones, activations of deep networks vanish or grow
    without bound, and all answers are equal."""
    normalisations = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in normalisations:
        layer.momentum = 1.0
    if normalisations:
        with torch.no_grad():
            module.train()(images)


LANGUAGE = ("bert", "gpt2", "t5", "xlnet", "bloom_560")
VISION = (
    "alexnet",
    "densenet121",
    "efficientnet_b7",
    "inception_v3",
    "mobilenet_v2",
    "resnet50",
    "resnext50_32x4d",
    "vgg19",
)


def write(folder: Path, name: str, device: str, tiny: bool, max_batch_size: int, rows: list[int]) -> None:
    """Makes one model, traced on its device, because constants of a trace stay on the device of tracing."""
    torch.manual_seed(1)
    made = (language if name in LANGUAGE else vision)(name, tiny)
    module = made.module.to(device)
    with torch.no_grad():
        traced = torch.jit.trace(module, made.inputs(2).to(device), strict=False, check_trace=False)
        folder.mkdir(parents=True, exist_ok=True)
        for count in rows:
            example = made.inputs(count)
            answer = module(example.to(device)).cpu().contiguous()
            (folder / f"example-{count}-input.bin").write_bytes(example.contiguous().numpy().tobytes())
            (folder / f"example-{count}-output.bin").write_bytes(answer.numpy().tobytes())
    registration = {
        "name": name,
        "max_batch_size": max_batch_size,
        "slo_ms": 1000,
        "rate_rps": 1,
        "inputs": [made.input_spec],
        "outputs": [made.output_spec],
    }
    (folder / "model.json").write_text(json.dumps(registration, indent=2))
    # Written last and atomically: if this file exists, all files of the model are complete.
    partial = folder / "model.partial"
    torch.jit.save(traced, str(partial))
    os.replace(partial, folder / "model.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=LANGUAGE + VISION)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tiny", action="store_true", help="make small networks of the same kind, which a CPU runs in milliseconds")
    parser.add_argument("--max-batch-size", type=int, default=128)
    parser.add_argument("--rows", type=int, action="append", default=[], help="write an example with this number of rows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    missing = {}
    for name in given.names:
        try:
            write(given.folder / name, name, given.device, given.tiny, given.max_batch_size, given.rows)
        except ImportError as e:
            missing[name] = f"{e.name or e} is not installed"
        except Exception as e:  # For example another version of a library, or too little memory: go on with the other models.
            lines = [line for line in f"{type(e).__name__}: {e}".splitlines() if line.strip()]
            missing[name] = " ".join(lines[:2])
        if given.device != "cpu":
            torch.cuda.empty_cache()
    sys.stdout.write(json.dumps(missing) + "\n")


if __name__ == "__main__":
    main()
