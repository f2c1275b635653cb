"""Calls libtorch directly, as an application without a gateway would: threads that share one module.

Reads lines `CONCURRENCY SECONDS` and answers each with a line of JSON: the latencies in microseconds, and the CPU seconds that
the process spent. `--input` gives the shape of the one FP32 input.
"""

import argparse
import json
import os
import sys
import threading
import time

import torch


def measure(module: torch.jit.ScriptModule, shape: list[int], concurrency: int, seconds: float) -> dict:
    """Closed loop: every thread asks again as soon as it has its answer."""
    latencies: list[list[float]] = [[] for _ in range(concurrency)]
    end = time.monotonic() + seconds

    def ask(mine: list[float]) -> None:
        # The tensor is made anew from bytes, as it would be from a request.
        data = bytearray(4 * torch.Size(shape).numel())
        with torch.inference_mode():
            while (start := time.monotonic()) < end:
                module(torch.frombuffer(data, dtype=torch.float32).reshape(shape))
                mine.append((time.monotonic() - start) * 1e6)

    before = time.process_time()
    threads = [threading.Thread(target=ask, args=(mine,)) for mine in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu = time.process_time() - before
    return {"latencies_us": [round(value, 1) for mine in latencies for value in mine], "cpu_s": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the TorchScript file")
    parser.add_argument("--input", type=int, nargs="+", required=True, help="the input's shape")
    arguments = parser.parse_args()
    # As the worker prepares it, but for a pass over linear layers that makes no difference in time.
    module = torch.jit.optimize_for_inference(torch.jit.load(arguments.model).eval())
    for line in sys.stdin:
        concurrency, seconds = line.split()
        # Threads that compare with nothing would fight for the cores: together they have as many as there are.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(concurrency)))
        print(json.dumps(measure(module, arguments.input, int(concurrency), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
