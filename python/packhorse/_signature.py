"""The signature of a module's program: which dimensions of its inputs vary, in which bounds."""

import contextlib
import io
import itertools
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from packhorse._call import Flat
from packhorse._folder import ExportError

# What the worker takes, by PyTorch's name.
DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
# A size above this is no bound of the model, but of PyTorch.
UNBOUNDED = 1 << 31
# The most numbers in the example of an input, and of all inputs.
EXAMPLE_ELEMENTS, ALL_EXAMPLE_ELEMENTS = 4096, 16_384
# The names of inputs that dimensions can be named after.
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
# The largest number that JSON has exactly.
EXACT = 1 << 53
# Times the example's size: beyond any bound of a dimension.
LARGEST = 1 << 20

# The most sizes, or pairs of sizes, for which it is tried whether a program is right.
MOST_SIZES = 4096
# The most sizes of a dimension beside which a program may begin to do something else, and how much larger than the example's they may be.
MOST_EDGES, LARGER = 12, 8
# The most rows of which each number is compared.
MOST_ROWS = 8

# The dimensions of inputs that vary beside the batch, with bounds or without.
Dynamic = Mapping[str, int | Iterable[int] | Mapping[int, tuple[int, int] | None]]
# The shapes of all inputs.
Sizes = tuple[tuple[int, ...], ...]


class Signature:
    """What `torch.export` says of a call."""

    def __init__(self, flat: Flat, tensors: Sequence[Tensor], dynamic: Dynamic, max_batch_size: int):
        self.names = flat.call.names
        self.tensors = tensors
        # What is narrower than declared.
        self.notes: list[str] = []
        for name, tensor in zip(self.names, tensors, strict=True):
            datatype(name, tensor.dtype)
        # The first dimension that is not the batch.
        self.first = int(max_batch_size > 0)
        rows = Dim("rows", min=1, max=max_batch_size) if max_batch_size > 1 else None
        self.bounds = declared(dynamic, dict(zip(self.names, tensors, strict=True)), self.first)
        varying = []
        for name, tensor in zip(self.names, tensors, strict=True):
            axes: dict[int, Any] = dict.fromkeys(self.varying(name, tensor), Dim.AUTO)
            varying.append(axes | ({0: rows} if rows else {}))
        try:
            # What PyTorch prints beside its error is a part of the graph.
            with contextlib.redirect_stderr(io.StringIO()):
                self.program: ExportedProgram = torch.export.export(
                    flat, tuple(tensors), dynamic_shapes=(tuple(varying),), prefer_deferred_runtime_asserts_over_guards=True
                )
        except ExportError:
            raise
        except Exception as e:
            raise ExportError(f"the model cannot be exported: {explained(e)}") from e
        nodes = {node.name: node for node in self.program.graph.nodes}
        shapes = lambda names: [[self.size(size) for size in nodes[name].meta["val"].shape] for name in names]
        self.input_shapes = shapes(self.program.graph_signature.user_inputs)
        self.output_shapes = shapes(self.program.graph_signature.user_outputs)
        # The symbol of the number of rows, if it varies.
        sizes = (shape[0] for shape in self.input_shapes if self.first)
        self.rows = next((size.node.expr for size in sizes if isinstance(size, torch.SymInt)), None)
        self.check_dynamic()

    def size(self, size: Any) -> Any:
        """A size as a number, where the program allows only one."""
        found = self.program.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
        return int(found.lower) if found is not None and found.lower == found.upper else size

    def varying(self, name: str, tensor: Tensor) -> list[int]:
        """The dimensions beside the batch that may vary: the declared ones, and all of integers and Booleans."""
        if name in self.bounds:
            return list(self.bounds[name])
        return [] if tensor.is_floating_point() else list(range(self.first, tensor.dim()))

    def check_dynamic(self) -> None:
        for name, shape in zip(self.names, self.input_shapes, strict=True):
            for axis, bounds in self.bounds.get(name, {}).items():
                if isinstance(shape[axis], int):
                    raise ExportError(f"dynamic: the program works with dimension {axis} of {name} at {shape[axis]} only: leave it out of dynamic")
                low, high = self.limits(name, axis, shape[axis])
                if high is not None and low > high:
                    raise ExportError(f"dynamic: the program works with dimension {axis} of {name} outside of {bounds} only: give other bounds")
                if bounds and bounds != (low, high):
                    self.notes.append(f"dimension {axis} of {name} is {low} to {high} in the program: an example of another size may allow more")

    def asserted(self, max_batch_size: int) -> list[Sizes]:
        """Shapes for which the program says that it is not made, where requests may have them: its code may do something else, which neither artifact
        notices. PyTorch is strict: often it does the same."""
        domains = self.domains(max_batch_size)
        found = []
        for node in self.program.graph.nodes:
            if node.target != torch.ops.aten._assert_scalar.default or not isinstance(node.args[0], torch.fx.Node):
                continue
            expression = node.args[0].meta["val"].node.expr
            symbols = sorted(expression.free_symbols, key=str)
            if not all(symbol in domains for symbol in symbols):
                continue
            tried = itertools.islice(itertools.product(*(domains[symbol] for symbol in symbols)), MOST_SIZES)
            values = (dict(zip(symbols, sizes, strict=True)) for sizes in tried)
            for wrong in itertools.islice((sizes for sizes in values if not holds(expression, sizes)), 2):
                rows = next((wrong[symbol] for symbol in symbols if symbol == self.rows), 1)
                found.append(self.with_values(rows, self.values(1.0) | wrong))
        return found

    def domains(self, max_batch_size: int) -> dict[Any, range]:
        """The sizes that requests may have, by symbol, but for one, which is compared."""
        found: dict[Any, range] = {}
        for name, shape in zip(self.names, self.input_shapes, strict=True):
            if self.rows is not None:
                found[self.rows] = range(2, max_batch_size + 1)
            for axis, size in self.chosen(shape):
                low, high = self.limits(name, axis, size)
                found[size.node.expr] = range(max(low, 2), (high or MOST_SIZES) + 1)
        return found

    def edges(self, max_batch_size: int) -> list[Sizes]:
        """Shapes for which the program may do something else: of each number of rows, of the smallest sizes, and of those beside numbers in its arithmetic of
        sizes."""
        found = self.asserted(max_batch_size)
        found += [self.sized(rows, 1.0) for rows in range(1, min(max_batch_size, MOST_ROWS) + 1)]
        numbers = set()
        for node in self.program.graph.nodes:
            value = node.meta.get("val")
            expressions = [value] if isinstance(value, torch.SymInt | torch.SymBool) else list(getattr(value, "shape", ()))
            for size in expressions:
                if isinstance(size, torch.SymInt | torch.SymBool):
                    numbers |= {int(number) for number in size.node.expr.atoms(sympy.Integer)}
        for name, shape, tensor in zip(self.names, self.input_shapes, self.tensors, strict=True):
            for axis, size in self.chosen(shape):
                low, high = self.limits(name, axis, size)
                program = self.program.range_constraints.get(size.node.expr)
                numbers |= {int(program.lower)} if program is not None else set()
                sizes = {1, 2, *(number + more for number in numbers for more in (-1, 0, 1))}
                bounds = self.bounds.get(name, {}).get(axis) or (1, high or tensor.shape[axis] * LARGER)
                sizes = sorted(size for size in sizes if bounds[0] <= size <= min(bounds[1], high or bounds[1]))
                for wanted in sizes[:MOST_EDGES]:
                    values = self.values(1.0) | {size.node.expr: wanted}
                    found.append(self.with_values(1, values))
        return list(dict.fromkeys(found))

    def check_numbers(self) -> None:
        """Refuses a program that takes a number out of a tensor, which a trace keeps."""
        for node in self.program.graph.nodes:
            if node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default):
                raise ExportError(
                    f"its code takes a number out of a tensor (.item(), int()){line_of(node)}, which a trace would keep: compute with the tensor, or make an "
                    "AOTInductor package (compile=True, --compile)"
                )

    def limits(self, name: str, axis: int, size: torch.SymInt) -> tuple[int, int | None]:
        """The bounds of a dimension that varies: the program's, within the declared ones."""
        found = self.program.range_constraints.get(size.node.expr)
        # A program has two as its lower bound, since it is not tried with less, and what is computed from it a multiple.
        low = 1 if found is None or found.lower <= 2 or not size.node.expr.is_Symbol else int(found.lower)
        high = None if found is None or found.upper > UNBOUNDED else int(found.upper)
        if bounds := self.bounds.get(name, {}).get(axis):
            low, high = max(low, bounds[0]), min(bounds[1], high or bounds[1])
        return low, high

    def dim_names(self, compiled: bool) -> dict[str, list[str | None]]:
        """The names of the dimensions that share a size, by input: each is named after the first one that has it.

        An AOTInductor package checks no relation of sizes, and those of one place that have no name are taken for equal: all of its sizes are named.
        """
        places: dict[Any, list[tuple[str, int]]] = {}
        for name, shape in zip(self.names, self.input_shapes, strict=True):
            for axis, size in self.open(shape):
                places.setdefault(size.node.expr, []).append((name, axis))
        if compiled:
            self.check_related(places)
        shared = {size: dims for size, dims in places.items() if len(dims) > 1}
        # Those of a single input have nothing to be equal to.
        if compiled and len({name for dims in places.values() for name, _ in dims}) > 1:
            shared = places
        found: dict[str, list[str | None]] = {}
        for dims in shared.values():
            first, of = dims[0]
            for name, axis in dims:
                rank = len(self.input_shapes[self.names.index(name)])
                found.setdefault(name, [None] * rank)[axis] = f"{first if NAME.fullmatch(first) else f'input{self.names.index(first)}'}_{of}"
        return found

    def check_related(self, places: Mapping[Any, list[tuple[str, int]]]) -> None:
        """Refuses a package with a size that is computed from others, since nothing would check it."""
        for size, dims in places.items():
            if size.is_Symbol:
                continue
            name, axis = dims[0]
            of = [f"dimension {axis} of {name}" for symbol in size.free_symbols for name, axis in places.get(symbol, [])[:1]]
            raise ExportError(
                f"dynamic: dimension {axis} of {name} must be {size} ({', '.join(of) or 'of the rows'}), which a package does not check: leave it out of "
                "dynamic, or export TorchScript (without compile=True, --compile)"
            )

    def input_specs(self, are_usual: bool, compiled: bool) -> list[dict]:
        """The inputs of a registration: with bounds, what shares a size, the example's sizes if they are usual, and the example itself where its numbers
        may be indices."""
        dim_names = self.dim_names(compiled)
        found = []
        for name, shape, tensor in zip(self.names, self.input_shapes, self.tensors, strict=True):
            spec: dict[str, Any] = {"name": name, "datatype": datatype(name, tensor.dtype)}
            spec["shape"] = [-1] * self.first + [-1 if isinstance(size, torch.SymInt) else size for size in shape[self.first :]]
            limits = {axis: self.limits(name, axis, size) for axis, size in self.open(shape)}
            most = {axis: high for axis, (_, high) in limits.items() if high}
            if most:
                spec["max_shape"] = [most.get(axis, -1) for axis in range(len(shape))]
            # A package is not made for nothing at all.
            least = {axis: low for axis, (low, _) in limits.items() if low > 1 or compiled}
            if least:
                spec["min_shape"] = [least.get(axis, -1) for axis in range(len(shape))]
            if name in dim_names:
                spec["dim_names"] = dim_names[name]
            if limits and are_usual:
                spec["typical_shape"] = [-1] * self.first + list(tensor.shape[self.first :])
            if not tensor.is_floating_point():
                row = (tensor[0] if self.first else tensor).flatten()[: min(EXAMPLE_ELEMENTS, ALL_EXAMPLE_ELEMENTS // len(self.names))]
                example = [int(element) for element in row.tolist()]
                if example and max(map(abs, example)) <= EXACT:
                    spec["example"] = example
            found.append(spec)
        return found

    def values(self, scale: float) -> dict[Any, int]:
        """The sizes that vary beside the batch by their symbols: so many times the example's, within their bounds."""
        found: dict[Any, int] = {}
        for name, shape, tensor in zip(self.names, self.input_shapes, self.tensors, strict=True):
            for axis, size in self.chosen(shape):
                low, high = self.limits(name, axis, size)
                wanted = max(low, round(tensor.shape[axis] * min(scale, LARGEST)))
                found[size.node.expr] = min(wanted, high or wanted, found.get(size.node.expr, wanted))
        return found

    def sized(self, rows: int, scale: float) -> Sizes:
        """The inputs' shapes with so many rows, and sizes that vary so many times the example's."""
        return self.with_values(rows, self.values(scale))

    def with_values(self, rows: int, values: Mapping[Any, int]) -> Sizes:
        """The inputs' shapes with so many rows and these sizes."""
        first = (rows,) * self.first
        return tuple(first + tuple(int(evaluated(size, values)) for size in shape[self.first :]) for shape in self.input_shapes)

    def open(self, shape: list) -> list[tuple[int, Any]]:
        """The dimensions of a shape that vary beside the batch."""
        return [(axis, size) for axis, size in enumerate(shape) if axis >= self.first and isinstance(size, torch.SymInt)]

    def chosen(self, shape: list) -> list[tuple[int, Any]]:
        """Those of them that are not computed from others."""
        return [(axis, size) for axis, size in self.open(shape) if size.node.expr.is_Symbol]


def evaluated(size: Any, values: Mapping[Any, int]) -> Any:
    """A size with numbers for its symbols."""
    return size.node.expr.subs(values) if isinstance(size, torch.SymInt) else size


def datatype(name: str, dtype: torch.dtype) -> str:
    """The datatype of a tensor in requests."""
    if dtype not in DATATYPES:
        raise ExportError(f"{name} is {dtype}, which no request can have: convert it in the model")
    return DATATYPES[dtype]


def declared(dynamic: Dynamic, tensors: Mapping[str, Tensor], first: int) -> dict[str, dict[int, tuple[int, int] | None]]:
    """The declared dimensions, which must be there and not be the batch."""
    found: dict[str, dict[int, tuple[int, int] | None]] = {}
    for name, axes in dynamic.items():
        if name not in tensors:
            raise ExportError(f"dynamic: there is no input {name}; the inputs are {', '.join(tensors)}")
        found[name] = dict(axes) if isinstance(axes, Mapping) else dict.fromkeys([axes] if isinstance(axes, int) else axes)
        for axis in found[name]:
            if not first <= axis < tensors[name].dim():
                raise ExportError(f"dynamic: dimension {axis} of {name}: expected {first} to {tensors[name].dim() - 1}")
            if tensors[name].shape[axis] < 2:
                raise ExportError(f"dynamic: dimension {axis} of {name} is {tensors[name].shape[axis]} in the example: give at least 2")
    return found


def holds(expression: Any, sizes: Mapping[Any, int]) -> bool:
    """Returns false if an expression is false for these sizes. Where it has no value, the model has none."""
    try:
        return bool(expression.subs(sizes) != sympy.false)
    except Exception:
        return True


def line_of(node: torch.fx.Node) -> str:
    """The line of the model that a node is from, if it is known."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', node.meta.get("stack_trace") or "")
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [frame for frame in frames if not frame[0].startswith(ours)]
    return f" (at {frames[-1][0]}:{frames[-1][1]}: {frames[-1][2].strip()})" if frames else ""


def explained(error: Exception) -> str:
    """An error of PyTorch in a line, with the line of the model that it is about."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The message's own frames come last, since they are nearest to the cause.
    frames = [(frame.filename, str(frame.lineno), frame.line or "") for frame in traceback.extract_tb(error.__traceback__)]
    frames += re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', text)
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    of_model = [frame for frame in frames if not frame[0].startswith(ours) and not frame[0].startswith("<")]
    if fixed := re.search(r"^  rows = (\d+)$|marked rows as dynamic but your code specialized it to be a constant \((\d+)\)", text, re.M):
        cure = "take the number of rows from the input (x.shape[0]), or export without a batch dimension (max_batch_size=0)"
        return f"its code works with {fixed[1] or fixed[2]} rows only: {cure}"
    what = f"{type(error).__name__}: {lines[0] if lines else ''}"
    if not of_model:
        return what
    file, line, source = of_model[-1]
    return f"{what}\n  at {file}:{line}: {source.strip()}"
