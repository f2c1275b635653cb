"""The comparison of an artifact's answers with those of the module it was made from, on inputs of several sizes whose rows differ."""

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from packhorse._call import Flat
from packhorse._folder import ExportError
from packhorse._signature import Signature, Sizes, datatype

# The largest difference of two answers, as a part of the tensor's magnitude. No other datatype may differ.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# The factors of rows of very different magnitude.
MAGNITUDES = (0.01, 100.0)
# The smallest magnitude that counts.
MAGNITUDE = 1e-3
# Rows, and the part of the example's sizes where these vary.
CASES = [(1, 1.0), (2, 1.0), (3, 0.67), (8, 1.4)]
# The part of a row that is there, and the part that is filled up.
FILLS = [(0.5, 0.01), (0.5, 0.5), (0.3, 0.7), (0.9, 0.1)]
# The most elements of a comparison with the largest sizes that are declared.
LARGEST_ELEMENTS = 1 << 14

Run = Callable[..., Sequence[Tensor]]


class Comparison:
    """Inputs of several sizes with the module's answers."""

    def __init__(self, flat: Flat, signature: Signature, names: list[str], max_batch_size: int):
        self.flat, self.signature, self.names = flat, signature, names
        self.max_batch_size = max_batch_size
        self.difference = 0.0
        cases = [signature.sized(min(rows, max_batch_size), scale) for rows, scale in CASES]
        largest = signature.sized(1, math.inf)
        if sum(map(math.prod, largest)) <= LARGEST_ELEMENTS:
            cases.append(largest)
        self.sizes = list(dict.fromkeys(cases))
        self.inputs = [self.drawn(sizes) for sizes in self.sizes]
        self.answers = [self.answer(inputs) for inputs in self.inputs]
        self.check_difference(self.answers[-1], self.answer(self.inputs[-1]), self.inputs[-1], "the model answers the same inputs differently each time")

    def drawn(self, sizes: Sizes) -> list[Tensor]:
        """Inputs of these shapes with elements of the example's, which are all known to be possible; masks keep their order."""
        generator = torch.Generator().manual_seed(0)
        found = []
        for tensor, shape in zip(self.signature.tensors, sizes, strict=True):
            elements = tensor.flatten().cpu()
            if is_mask(tensor):
                made = tensor.cpu()
                for axis, size in enumerate(shape):
                    made = made.index_select(axis, torch.arange(size) % made.shape[axis])
            elif tensor.is_floating_point() and bool((elements == elements[0]).all()):
                made = torch.randn(shape, generator=generator).to(tensor.dtype)
            else:
                made = elements[torch.randint(len(elements), shape, generator=generator)]
            found.append(made.to(tensor.device))
        if sizes[0][:1] > (1,) and self.signature.first and not any(len(tensor.unique(dim=0)) > 1 for tensor in found):
            raise ExportError("example_inputs: all numbers are the same, so that no comparison tells rows apart: give usual ones")
        return found

    def answer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The module's answer."""
        try:
            return self.flat(*copied(inputs))
        except Exception as e:
            text = f"the model fails with inputs of {shapes(inputs)}: {type(e).__name__}: {e}"
            raise ExportError(f"{text}; give bounds that it takes (dynamic=, --dynamic)") from e

    def output_specs(self) -> list[dict]:
        """The outputs of a registration. A dimension varies where the program says so or answers do.

        The program alone would not do, since PyTorch 2.11 has the state of an LSTM with a dimension more than there is.
        """
        found = []
        for i, name in enumerate(self.names):
            observed = [answers[i].shape for answers in self.answers]
            declared = self.signature.output_shapes[i]
            shape = []
            for axis, sizes in enumerate(zip(*observed, strict=True)):
                varies = len(declared) == len(observed[0]) and isinstance(declared[axis], torch.SymInt)
                shape.append(-1 if varies or len(set(sizes)) > 1 else sizes[0])
            shape[: self.signature.first] = [-1] * self.signature.first
            found.append({"name": name, "datatype": datatype(name, self.answers[0][i].dtype), "shape": shape})
        return found

    def check_batch(self) -> None:
        """Asserts that the first dimension of every output is the batch, and that no other one changes with it."""
        for i, name in enumerate(self.names):
            observed = {(len(inputs[0]), answers[i].shape) for inputs, answers in zip(self.inputs, self.answers, strict=True)}
            one, two = (answers[i].shape for answers in self.answers[:2])
            if any(shape[:1] != (rows,) for rows, shape in observed) or one[1:] != two[1:]:
                raise ExportError(
                    f"output {name} is {dimensions(one)} for a row and {dimensions(two)} for two: its rows are not those of the inputs, so requests cannot "
                    f"share a batch; leave it out (outputs=, --outputs; there are {', '.join(self.names)}), or export without a batch dimension (max_batch_size=0)"
                )

    def check_rows(self) -> None:
        """Asserts that the answer of each row beside others is the one that it has alone."""
        for inputs, answers in zip(self.inputs, self.answers, strict=True):
            self.check_rows_of(inputs, answers)
        # What depends on the largest number of a batch shows beside rows of another magnitude only. The model may refuse such numbers.
        inputs = max(self.inputs, key=lambda inputs: len(inputs[0]))
        unequal = [scaled_rows(tensor) if tensor.is_floating_point() else tensor for tensor in inputs]
        try:
            answers = self.flat(*copied(unequal))
        except Exception:
            return
        self.check_rows_of(unequal, answers)

    def check_rows_of(self, inputs: Sequence[Tensor], answers: Sequence[Tensor]) -> None:
        what = "rows depend on each other, so requests cannot share a batch: a row alone has another answer"
        rows = len(inputs[0])
        for row in range(rows if rows > 1 else 0):
            alone = self.answer([tensor[row : row + 1] for tensor in inputs])
            self.check_difference([answer[row : row + 1] for answer in answers], alone, inputs, what)

    def check_artifact(self, run: Run, compiled: bool) -> None:
        """Asserts that the artifact answers as the module does, and keeps the largest difference."""
        for inputs, answers in zip(self.inputs, self.answers, strict=True):
            try:
                given = run(*copied(inputs))
            except Exception as e:
                raise ExportError(f"the artifact fails with inputs of {shapes(inputs)}, which the model takes: {str(e).strip().splitlines()[-1]}") from e
            largest = self.check_difference(answers, given, inputs, "the artifact answers otherwise than the model")
            self.difference = max(self.difference, largest)
        for sizes in self.signature.edges(self.max_batch_size):
            if sizes not in self.sizes:
                self.check_edge(run, self.drawn(sizes), compiled)

    def check_edge(self, run: Run, inputs: Sequence[Tensor], compiled: bool) -> None:
        """Asserts the same for sizes that the model may refuse. A package must refuse them, too: its code reads what lies beyond an input otherwise."""
        wanted = None
        with contextlib.suppress(Exception):
            wanted = self.flat(*copied(inputs))
        if wanted is None and not compiled:
            return
        try:
            given = run(*copied(inputs))
        except Exception:
            # A package refuses what it was not compiled for.
            return
        if wanted is None:
            raise ExportError(
                f"the package answers inputs of {shapes(inputs)}, which the model refuses: leave the dimension out of dynamic, give bounds that the model takes, "
                "or export TorchScript (without compile=True, --compile)"
            )
        what = "the artifact answers otherwise than the model, whose code does something else for some sizes: compute the same for all (torch.where), or leave them out (bounds in dynamic=, --dynamic)"
        self.check_difference(wanted, given, inputs, what)

    def check_difference(self, wanted: Sequence[Tensor], given: Sequence[Tensor], inputs: Sequence[Tensor], what: str) -> float:
        """The largest difference of two answers, which must be within the tolerance."""
        largest = 0.0
        for name, one, other in zip(self.names, wanted, given, strict=True):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise ExportError(f"{what}: output {name} for {shapes([*inputs])} is {shapes([other])}, and not {shapes([one])}")
            found, magnitude = difference(one, other)
            largest = max(largest, found)
            if not found <= TOLERANCES.get(one.dtype, 0) * max(magnitude, MAGNITUDE):
                raise ExportError(f"{what}: output {name} for {shapes([*inputs])} differs by {found:.3g} of {magnitude:.3g}")
        return largest

    def unpaddable(self, pad: Mapping[str, float]) -> str | None:
        """Why rows cannot be filled up with these values, if they cannot."""
        drawn = self.drawn(self.signature.sized(3, 1.0))
        axes = {name: self.signature.open(shape) for name, shape in zip(self.signature.names, self.signature.input_shapes, strict=True)}
        for name, found in axes.items():
            if len(found) != (name in pad):
                return f"{name} has {len(found)} dimensions that vary, expected {int(name in pad)}"

        def filled(tensor: Tensor, name: str, length: float, fill: float) -> Tensor:
            """The first part of a tensor, followed by a part that is filled: at least one element."""
            if not axes[name]:
                return tensor
            axis = axes[name][0][0]
            size = max(1, round(tensor.shape[axis] * length))
            more = [*tensor.shape]
            more[axis] = min(tensor.shape[axis] - size, max(1, round(tensor.shape[axis] * fill))) if fill else 0
            return torch.cat([tensor.narrow(axis, 0, size), torch.full(more, pad[name], dtype=tensor.dtype, device=tensor.device)], axis)

        # A maximum, say, would be taken of what is filled in.
        signs = [lambda tensor: tensor, lambda tensor: -tensor.abs() if tensor.is_floating_point() else tensor, torch.abs]
        try:
            for (length, fill), sign in itertools.product(FILLS, signs):
                whole = [tensor if is_mask(tensor) else sign(tensor) for tensor in drawn]
                short, long = (
                    [filled(tensor, name, length, part) for name, tensor in zip(self.signature.names, whole, strict=True)] for part in (0.0, fill)
                )
                self.check_difference(self.answer(short), self.answer(long), long, "a filled row has another answer")
        except ExportError as e:
            return str(e)
        return None


def copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that a module may write to."""
    return [tensor.clone() for tensor in tensors]


def scaled_rows(tensor: Tensor) -> Tensor:
    """The tensor with small and large rows in turn."""
    factors = torch.tensor([MAGNITUDES[row % len(MAGNITUDES)] for row in range(len(tensor))], dtype=tensor.dtype)
    return tensor * factors.view(-1, *[1] * (tensor.dim() - 1))


def is_mask(tensor: Tensor) -> bool:
    """Returns true for zeros and ones that are no measurements."""
    return not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())


def difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The largest difference of two elements, and the largest magnitude. Equal infinities, and what is no number in both, do not differ."""
    one, other = one.detach().to(torch.float64), other.detach().to(torch.float64)
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one - other).abs())
    finite = torch.where(one.isfinite(), one.abs(), 0.0)
    return (float(apart.max()), float(finite.max())) if apart.numel() else (0.0, 0.0)


def shapes(tensors: Sequence[Tensor]) -> str:
    """The shapes of tensors for a reader."""
    return " ".join(dimensions(tensor.shape) for tensor in tensors)


def dimensions(shape: Sequence[int]) -> str:
    """A shape for a reader."""
    return "x".join(map(str, shape)) or "scalar"
