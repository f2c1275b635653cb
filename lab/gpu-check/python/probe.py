"""Probes of PyTorch and CUDA for gpu-check. Prints one JSON object.

    python probe.py facts                    versions, and the number of usable GPUs
    python probe.py copies cuda BYTES        the speed of copies from pinned memory to the device, in bytes/s
    python probe.py multiprocessors          the number of multiprocessors of a process with this environment
    python probe.py green-contexts           the time to make and to change to a part of the multiprocessors, in ms
    python probe.py fault assert             causes a fault on the GPU: a kernel fails an assertion, or writes to an
    python probe.py fault address            address that is not the process's
"""

import ctypes
import importlib.metadata
import json
import os
import sys
import time

import torch

# cudaDevAttrMultiProcessorCount and CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
MULTIPROCESSOR_COUNT = 16
SECONDS = 2.0
COPIES_AT_A_TIME = 20


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict:
    usable = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "transformers": version("transformers"),
        "cuda": torch.version.cuda,
        "gpus": torch.cuda.device_count() if usable else 0,
        "cudnn": torch.backends.cudnn.version() if usable else None,
    }


def copies(device: str, size: int) -> dict:
    """Copies one pinned buffer repeatedly, several copies at a time."""
    source = torch.ones(size, dtype=torch.uint8, pin_memory=device != "cpu")
    target = torch.empty(size, dtype=torch.uint8, device=device)

    def copy_several() -> None:
        for _ in range(COPIES_AT_A_TIME):
            target.copy_(source, non_blocking=True)
        if device != "cpu":
            torch.cuda.synchronize()

    copy_several()
    copied, started = 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        copy_several()
        copied += COPIES_AT_A_TIME * size
    return {"bytes_per_s": copied / (time.perf_counter() - started)}


def multiprocessors() -> dict:
    """Returns the number that the driver reports to this process, which for a client of MPS is that of its share."""
    torch.zeros(1, device="cuda").item()
    count = ctypes.c_int()
    error = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(count), MULTIPROCESSOR_COUNT, 0)
    if error:
        raise RuntimeError(f"cuDeviceGetAttribute: error {error}")
    return {"multiprocessors": count.value}


def green_contexts() -> dict:
    """Makes green contexts, which are parts of the multiprocessors within one process, and runs a matrix product in each."""
    from torch.cuda.green_contexts import GreenContext

    x = torch.randn(4096, 4096, device="cuda")

    def product_ms() -> float:
        for _ in range(3):
            torch.mm(x, x)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            torch.mm(x, x)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e2

    whole = torch.cuda.get_device_properties(0).multi_processor_count
    parts = [{"multiprocessors": whole, "product_ms": product_ms()}]
    for share in (4, 2):
        started = time.perf_counter()
        context = GreenContext.create(whole // share // 8 * 8)
        made = time.perf_counter()
        context.set_context()
        torch.mm(x, x)
        torch.cuda.synchronize()
        changed = time.perf_counter()
        ms = product_ms()
        context.pop_context()
        parts.append(
            {
                "multiprocessors": whole // share // 8 * 8,
                "product_ms": ms,
                "make_ms": (made - started) * 1e3,
                "change_ms": (changed - made) * 1e3 - ms,
            }
        )
    return {"parts": parts}


# A kernel that writes to the address 16.
WRITE_TO_NO_ADDRESS = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry write_to_no_address()
{
    .reg .b32 value;
    .reg .b64 address;
    mov.u32 value, 1;
    mov.u64 address, 16;
    st.global.u32 [address], value;
    ret;
}
"""


def fail_assertion() -> str | None:
    x = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    try:
        # The kernel asserts on the device that indices are in range.
        x[torch.full((1,), 1 << 40, device="cuda")] = 1.0
        torch.cuda.synchronize()
    except RuntimeError as e:
        return str(e).splitlines()[0]
    return None


def write_to_no_address() -> str | None:
    torch.zeros(1, device="cuda").item()
    cuda = ctypes.CDLL("libcuda.so.1")
    module, kernel, nothing = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    for error in (
        cuda.cuModuleLoadData(ctypes.byref(module), WRITE_TO_NO_ADDRESS),
        cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"write_to_no_address"),
        cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nothing, nothing, nothing),
    ):
        if error:
            raise RuntimeError(f"the kernel cannot be started: error {error} of CUDA's driver")
    error = cuda.cuCtxSynchronize()
    return f"error {error} of CUDA's driver" if error else None


def fault(kind: str) -> dict:
    """Causes a fault like that of a faulty model; `fault` is the error that the process received."""
    return {"fault": {"assert": fail_assertion, "address": write_to_no_address}[kind]()}


def main() -> None:
    probe, arguments = sys.argv[1], sys.argv[2:]
    probes = {
        "facts": facts,
        "copies": lambda: copies(arguments[0], int(arguments[1])),
        "multiprocessors": multiprocessors,
        "green-contexts": green_contexts,
        "fault": lambda: fault(arguments[0]),
    }
    sys.stdout.write(json.dumps(probes[probe]()) + "\n")
    sys.stdout.flush()
    # Skip the end of the process, at which CUDA may fail after a fault on the GPU.
    os._exit(0)


if __name__ == "__main__":
    main()
