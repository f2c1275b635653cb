"""The unmodified `tritonclient`, with as little around it as the tests need."""

import asyncio

import numpy as np
import tritonclient.http as sync_client
import tritonclient.http.aio as asyncio_client
from tritonclient.utils import np_to_triton_dtype


class Blocking:
    """The asyncio client, one call at a time."""

    def __init__(self, address: str, **options):
        self.loop = asyncio.new_event_loop()

        async def connect():
            return asyncio_client.InferenceServerClient(address, **options)

        self.client = self.loop.run_until_complete(connect())

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *arguments, **named: self.loop.run_until_complete(method(*arguments, **named))


def connect(kind: str, address: str):
    """A client: `sync` or `asyncio`."""
    return sync_client.InferenceServerClient(address) if kind == "sync" else Blocking(address)


def tensors(inputs: dict[str, np.ndarray], binary: bool = True) -> list[sync_client.InferInput]:
    """The inputs of a request."""
    made = []
    for name, array in inputs.items():
        tensor = sync_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=binary)
        made.append(tensor)
    return made


def outputs(names: list[str], binary: bool = True) -> list[sync_client.InferRequestedOutput]:
    """The outputs that a request asks for."""
    return [sync_client.InferRequestedOutput(name, binary_data=binary) for name in names]
