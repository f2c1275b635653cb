"""The call of a module with its arguments flattened to named tensors, and its answer, too."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from packhorse._folder import ExportError

# What may stand beside tensors in arguments and answers, and is left as it is.
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in a value by name, and whatever else is neither plain nor a mapping, a sequence or a dataclass."""
    items: Any
    if isinstance(value, PLAIN):
        return
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    elif is_dataclass(value):
        items = ((part.name, getattr(value, part.name)) for part in fields(value))
    else:
        yield name, value
        return
    for key, inner in items:
        yield from leaves(inner, f"{name}_{key}" if name else str(key))


def with_tensors(value: Any) -> Any:
    """The value with tensors in place of NumPy's arrays."""
    if isinstance(value, np.ndarray):
        try:
            # PyTorch has the machine's byte order only.
            return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=True))
        except TypeError as e:
            raise ExportError(f"example_inputs: an array of {value.dtype}, which PyTorch has no tensor for: give numbers or Booleans") from e
    if isinstance(value, Mapping):
        return {key: with_tensors(inner) for key, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(with_tensors(inner) for inner in value)
    return value


def refill(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with other tensors in place of its own, in the order of `leaves`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: refill(inner, tensors) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(refill(inner, tensors) for inner in value))
    if isinstance(value, tuple | list):
        return type(value)(refill(inner, tensors) for inner in value)
    return value


class Call:
    """The arguments of a module's call by the names of its parameters, with the tensors among them by names of their own."""

    def __init__(self, model: nn.Module, example_inputs: Tensor | Sequence | Mapping):
        signature = inspect.signature(model.forward)
        example_inputs = with_tensors(example_inputs)
        try:
            match example_inputs:
                case Tensor():
                    self.bound = signature.bind(example_inputs)
                case Mapping():
                    # The keys and values of earlier tokens are no answer that anybody asked for.
                    known = {"use_cache": False} if "use_cache" in signature.parameters else {}
                    self.bound = signature.bind(**{**known, **example_inputs})
                case _:
                    self.bound = signature.bind(*example_inputs)
        except TypeError as e:
            parameters = ", ".join(signature.parameters)
            raise ExportError(f"example_inputs: {e}; {type(model).__name__}.forward takes {parameters}") from e
        found = {}
        for parameter, value in self.bound.arguments.items():
            is_more = signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD
            for name, leaf in leaves(value, "" if is_more else parameter):
                if not isinstance(leaf, Tensor) or is_dataclass(value):
                    raise ExportError(f"example_inputs: {name} is a {type(leaf).__name__}: give tensors, also in tuples, lists and dicts")
                if name in found:
                    raise ExportError(f"example_inputs: two tensors would be named {name}: rename a parameter or a key")
                found[name] = leaf.detach()
        if not found:
            raise ExportError("example_inputs: there is no tensor: give at least one")
        self.names = list(found)
        self.tensors = tuple(found.values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple, dict]:
        """Positional and keyword arguments with other tensors."""
        rest = iter(tensors)
        arguments = {name: refill(value, rest) for name, value in self.bound.arguments.items()}
        bound = inspect.BoundArguments(self.bound.signature, arguments)
        return bound.args, bound.kwargs


class Flat(nn.Module):
    """A module that takes the tensors of a call in their order and returns a tuple of tensors, those of `outputs` if given."""

    def __init__(self, model: nn.Module, call: Call, outputs: Sequence[str] | None = None):
        super().__init__()
        self.model = model
        self.call = call
        self.outputs = outputs
        # TorchScript would ask the wrapper's mode.
        self.train(model.training)

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The outputs by name."""
        args, kwargs = self.call.with_tensors(tensors)
        found: dict[str, Any] = {}
        for name, leaf in leaves(self.model(*args, **kwargs)):
            # A number is the place of a result without a name.
            name = f"output_{name}" if name[:1].isdigit() else name or "output"
            if name in found:
                raise ExportError(f"outputs: two results would be named {name}: rename a key, or wrap the model")
            found[name] = leaf
        if self.outputs is not None:
            if unknown := [name for name in self.outputs if name not in found]:
                raise ExportError(f"outputs: there is no {', '.join(unknown)}; the model returns {', '.join(found)}")
            found = {name: found[name] for name in self.outputs}
        if others := [f"{name} (a {type(leaf).__name__})" for name, leaf in found.items() if not isinstance(leaf, Tensor)]:
            raise ExportError(f"outputs: {', '.join(others)} is no tensor: choose outputs by name (outputs=, --outputs) or wrap the model")
        if not found:
            raise ExportError("outputs: the model returns no tensor: wrap it in a module that returns one")
        return found

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named(tensors).values())
