"""Measures what PyTorch's settings of precision and layout are worth for one model. Prints one JSON array.

    python precision.py cuda MODEL.pt INPUT.bin float32|int64 8,32 SECONDS 3,224,224

INPUT.bin contains the values of one row, little-endian, of the shape behind it. Every setting runs the frozen program on a batch of
equal rows that stays on the device, recorded as a CUDA graph where there is one, and is compared with FP32 without the 10 bits of TF32.
"""

import json
import sys
import time
from dataclasses import dataclass

import torch

# Runs before a setting is measured: cuDNN compares its algorithms in the first ones.
WARM_UP_RUNS = 6


@dataclass(frozen=True)
class Setting:
    """`convolutions` and `products` allow TF32 for convolutions and for matrix products."""

    name: str
    convolutions: bool = False
    products: bool = False
    channels_last: bool = False
    benchmark: bool = False
    datatype: torch.dtype = torch.float32


SETTINGS = (
    Setting("FP32"),
    Setting("PyTorch's defaults", convolutions=True),
    Setting("TF32", convolutions=True, products=True),
    Setting("TF32, benchmark", convolutions=True, products=True, benchmark=True),
    Setting("TF32, channels_last", convolutions=True, products=True, channels_last=True),
    Setting("TF32, channels_last, benchmark", convolutions=True, products=True, channels_last=True, benchmark=True),
    Setting("FP16, channels_last, benchmark", True, True, True, True, torch.float16),
    Setting("BF16, channels_last, benchmark", True, True, True, True, torch.bfloat16),
)


def energy(device: str) -> float | None:
    """Returns the joules that the GPU has used, if NVML is there."""
    if device == "cpu":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1e3
    except Exception:
        return None


def recorded(device: str, program, batch: torch.Tensor):
    """Returns a function that runs the batch, and its output: a replayed CUDA graph on a GPU, the program itself elsewhere."""
    for _ in range(WARM_UP_RUNS):
        output = program(batch)
    if device == "cpu":
        return (lambda: program(batch)), output
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            program(batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = program(batch)
    return graph.replay, output


def measure(device: str, path: str, row: torch.Tensor, rows: int, setting: Setting, seconds: float) -> tuple[dict, torch.Tensor]:
    torch.backends.cudnn.allow_tf32 = setting.convolutions
    torch.backends.cuda.matmul.allow_tf32 = setting.products
    torch.backends.cudnn.benchmark = setting.benchmark
    program = torch.jit.load(path, device).eval()
    if setting.datatype != torch.float32:
        program = program.to(setting.datatype)
    batch = row.expand(rows, *row.shape).contiguous().to(device)
    if batch.is_floating_point():
        batch = batch.to(setting.datatype)
    if setting.channels_last:
        program = program.to(memory_format=torch.channels_last)
        if batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
    program = torch.jit.freeze(program)
    run, output = recorded(device, program, batch)
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    run()
    synchronize()
    before, started, runs = energy(device), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(8 if device != "cpu" else 1):
            run()
            runs += 1
        synchronize()
    took, after = time.perf_counter() - started, energy(device)
    joules = (after - before) / (runs * rows) if before is not None and after is not None else None
    return {"requests_per_s": runs * rows / took, "joules_per_request": joules}, output.float().cpu()


def main() -> None:
    device, path, input_path, datatype, sizes, seconds, shape = sys.argv[1:8]
    values = torch.frombuffer(bytearray(open(input_path, "rb").read()), dtype=getattr(torch, datatype))
    row = values.reshape([int(dim) for dim in shape.split(",")])
    results = []
    with torch.no_grad():
        for rows in (int(size) for size in sizes.split(",")):
            reference = None
            for setting in SETTINGS:
                line = {"batch_size": rows, "setting": setting.name}
                try:
                    measured, output = measure(device, path, row, rows, setting, float(seconds))
                    reference = output if reference is None else reference
                    largest = reference.abs().max().item()
                    line |= measured | {"difference": (output - reference).abs().max().item() / largest, "error": None}
                except Exception as e:
                    line |= {"error": (str(e).strip().splitlines() or [type(e).__name__])[-1][:200]}
                results.append(line)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
