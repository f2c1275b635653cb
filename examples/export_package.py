"""Compiles a PyTorch module ahead of time into an AOTInductor package.

    python examples/export_package.py torchvision.models:mobilenet_v2 3,224,224 mobilenet.pt2 --max-batch-size 32
    python examples/export_package.py torchvision.models:mobilenet_v2 3,224,224 mobilenet.pt2 --batch-sizes 1,8,32

The package is native code for this kind of machine: compile it where it will run, and register only packages that you trust. It takes
the shapes it was compiled for and batches of 1 to --max-batch-size rows; `packhorse model register` takes it as it takes TorchScript.
Programs with several inputs, or with integers, call `export_package` with inputs of their own.

With --batch-sizes the package holds a program for each of these sizes, which is faster where shapes that are known allow more: files under
`data/aotinductor/rows-8/` for 8 rows and so on, in place of `data/aotinductor/model/`. A worker gives a batch to the program of exactly its
rows, else to the smallest that takes it. Each has the model's parameters, and memory for them.
"""

import argparse
import importlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch._inductor.package import package_aoti


def export_package(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    path: Path,
    max_batch_size: int,
    batch_sizes: Iterable[int] = (),
) -> None:
    """Compiles `module` in evaluation mode for the device of `inputs`: an example with 2 rows, or 1 if there are never more. The first
    dimension of every input is the batch. Compares the package with the module before it returns. With `batch_sizes` there is a program
    for each of these, and none for others."""
    module = module.eval()
    examples = {"model": inputs}
    if sizes := sorted(set(batch_sizes)):
        examples = {f"rows-{size}": tuple(with_rows(tensor, size) for tensor in inputs) for size in sizes}
        max_batch_size = 1
    rows = {0: torch.export.Dim("rows", min=1, max=max_batch_size)} if max_batch_size > 1 else None
    shapes = tuple(rows for _ in inputs)
    with torch.no_grad():
        files = {}
        for name, example in examples.items():
            program = torch.export.export(module, example, dynamic_shapes=shapes)
            options = {"aot_inductor.package": True}
            files[name] = torch._inductor.aot_compile(program.module(), example, options=options)
        package_aoti(str(path), files)
        for name, example in examples.items():
            package = torch._inductor.package.load_package(str(path), name)
            torch.testing.assert_close(package(*example), module(*example), atol=1e-4, rtol=1e-4)


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor's first row, so many times."""
    return tensor[:1].repeat(rows, *(1 for _ in tensor.shape[1:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", metavar="MODULE:CALLABLE", help="what makes the module, without arguments")
    parser.add_argument("shape", help="the shape of one row of its FP32 input, such as 3,224,224")
    parser.add_argument("path", type=Path, help="the file to write, which must end in .pt2")
    parser.add_argument("--max-batch-size", type=int, default=8, help="the most rows of a batch (default: 8)")
    parser.add_argument("--batch-sizes", default="", help="compile a program for each of these, such as 1,8,32")
    options = parser.parse_args()
    made_by, name = options.module.split(":")
    row = [int(size) for size in options.shape.split(",")]
    sizes = [int(size) for size in options.batch_sizes.split(",") if size]
    example = torch.randn(min(2, options.max_batch_size), *row)
    made = getattr(importlib.import_module(made_by), name)()
    export_package(made, (example,), options.path, options.max_batch_size, sizes)
