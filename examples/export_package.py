"""Compiles a PyTorch module ahead of time into an AOTInductor package.

    python examples/export_package.py torchvision.models:mobilenet_v2 3,224,224 mobilenet.pt2 --max-batch-size 32

The package is native code for this kind of machine: compile it where it will run, and register only packages that you trust. It takes
the shapes it was compiled for and batches of 1 to --max-batch-size rows; `packhorse model register` takes it as it takes TorchScript.
Programs with several inputs, or with integers, call `export_package` with inputs of their own.
"""

import argparse
import importlib
from pathlib import Path

import torch


def export_package(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, max_batch_size: int) -> None:
    """Compiles `module` in evaluation mode for the device of `inputs`: an example with 2 rows, or 1 if there are never more. The first
    dimension of every input is the batch. Compares the package with the module before it returns."""
    module = module.eval()
    rows = torch.export.Dim("rows", min=1, max=max_batch_size)
    shapes = tuple({0: rows} if max_batch_size > 1 else None for _ in inputs)
    with torch.no_grad():
        program = torch.export.export(module, inputs, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        package = torch._inductor.aoti_load_package(str(path))
        torch.testing.assert_close(package(*inputs), module(*inputs), atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", metavar="MODULE:CALLABLE", help="what makes the module, without arguments")
    parser.add_argument("shape", help="the shape of one row of its FP32 input, such as 3,224,224")
    parser.add_argument("path", type=Path, help="the file to write, which must end in .pt2")
    parser.add_argument("--max-batch-size", type=int, default=8, help="the most rows of a batch (default: 8)")
    options = parser.parse_args()
    made_by, name = options.module.split(":")
    row = [int(size) for size in options.shape.split(",")]
    example = torch.randn(min(2, options.max_batch_size), *row)
    export_package(getattr(importlib.import_module(made_by), name)(), (example,), options.path, options.max_batch_size)
