"""From a PyTorch module with example inputs to a folder of a model repository.

`torch.export` tells the signature, and refuses what a trace would silently freeze, such as a branch on a tensor's value. The artifact is a
trace or an AOTInductor package, which answers as the module does before the folder takes its place.
"""

import contextlib
import io
import json
import logging
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from packhorse import _pictures, _texts
from packhorse._call import Call, Flat
from packhorse._comparison import Comparison, Run, copied, shapes
from packhorse._folder import ExportError, new_folder
from packhorse._signature import DATATYPES, Dynamic, Signature, explained

# The limits of a registration: the rows of a batch, and the SLO in milliseconds.
MAX_BATCH_SIZE = 4096
MAX_SLO_MS = 60_000
# The most elements of request.json and answer.json.
REQUEST_ELEMENTS = 1 << 18
# The most tensors on each side.
MAX_TENSORS = 64
# The name of the registration in an artifact.
EMBEDDED = "packhorse.json"
ONE_AT_A_TIME = threading.Lock()


@dataclass
class Exported:
    """A written folder of a model repository."""

    folder: Path
    # The program, in the folder.
    artifact: Path
    # What model.json has.
    registration: dict
    # The shapes of the inputs that artifact and module were compared with.
    compared: list[str]
    # The largest difference between an element of theirs.
    difference: float
    seconds: float
    # What was left out, and why.
    notes: list[str]


def export(
    model: nn.Module,
    example_inputs: Tensor | Sequence | Mapping,
    folder: str | Path,
    *,
    slo_ms: float = 100,
    max_batch_size: int = 8,
    dynamic: Dynamic | None = None,
    outputs: Sequence[str] | None = None,
    pad: Mapping[str, float] | None = None,
    compile: bool = False,
    labels: Sequence[str] = (),
    preprocess: Mapping[str, Mapping] | None = None,
    classifies: bool = False,
    embeds: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    usual_sizes: bool = True,
    notes: Sequence[str] = (),
    overwrite: bool = False,
) -> Exported:
    """Writes a module as the folder of a model repository, whose name is the model's.

    `example_inputs` are a tensor, a sequence of positional arguments or a mapping of keyword arguments. What is no tensor in them stays as it is.
    The first dimension of every tensor is the batch, unless `max_batch_size` is 0.

    `dynamic` names further dimensions that vary, such as `{"mel": [2]}`, or `{"mel": {2: (100, 3000)}}` with bounds. Those of integers and Booleans
    vary without it where the program allows it. `outputs` chooses outputs by name. `pad` has the value by input that fills shorter rows up, and is
    declared where that changes no answer. `compile` makes an AOTInductor package. `labels`, one for each class, become labels.txt beside the
    artifact, and `files` by name are put there, too. `preprocess` says by input how a picture becomes its rows, or by a further name how a text becomes several inputs. `classifies`
    says that the only output has the logits of the labels, so that a picture is answered its best ones, and `embeds` that it is an embedding. Without `usual_sizes` the example's sizes are not those that requests usually have, which the
    gateway learns then. `notes` are passed on. `overwrite` replaces an existing folder.
    """
    started = time.monotonic()
    folder = Path(folder).absolute()
    check_arguments(model, folder, slo_ms, max_batch_size, pad)
    check_files(labels, files or {}, outputs)
    # PyTorch exports one program at a time.
    with ONE_AT_A_TIME, new_folder(folder, overwrite) as made, as_it_is_served(model):
        call = Call(model, example_inputs)
        if unknown := sorted(set(pad or {}) - set(call.names)):
            raise ExportError(f"pad: there is no input {', '.join(unknown)}; the inputs are {', '.join(call.names)}")
        flat = Flat(model, call, outputs)
        tensors = examples(call, max_batch_size)
        names = output_names(flat, tensors)
        signature = Signature(flat, tensors, dynamic or {}, max_batch_size)
        comparison = Comparison(flat, signature, names, max_batch_size)
        if max_batch_size > 1:
            comparison.check_batch()
            comparison.check_rows()
        if not compile:
            signature.check_numbers()
        inputs, notes = signature.input_specs(usual_sizes, compile), [*notes, *signature.notes]
        if pad:
            if problem := comparison.unpaddable(pad):
                notes.append(f"no pad is declared: {problem}")
            else:
                for spec in inputs:
                    if spec["name"] in pad:
                        spec["pad"] = {"axis": spec["shape"].index(-1, signature.first), "value": pad[spec["name"]]}
        registration = {
            "name": folder.name,
            "max_batch_size": max_batch_size,
            "slo_ms": int(slo_ms) if slo_ms == int(slo_ms) else slo_ms,
            "inputs": inputs,
            "outputs": comparison.output_specs(),
        }
        registration |= processing_of(registration, preprocess or {}, labels if classifies else None, embeds, notes)
        check_limits(registration)
        version = made / "1"
        version.mkdir()
        artifact = version / ("model.pt2" if compile else "model.pt")
        # The artifact alone tells its registration, too.
        told = json.dumps(registration)
        comparison.check_artifact(compiled(signature, artifact, told) if compile else traced(flat, tensors, artifact, told), compile)
        (made / "model.json").write_text(lines(registration))
        write_request(made, flat, signature, names)
        if labels:
            (version / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
        for name, content in (files or {}).items():
            (version / name).write_bytes(content)
    compared = [shapes(inputs) for inputs in comparison.inputs]
    return Exported(folder, folder / "1" / artifact.name, registration, compared, comparison.difference, time.monotonic() - started, notes)


def check_arguments(model: nn.Module, folder: Path, slo_ms: float, max_batch_size: int, pad: Mapping | None) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError("model: it is TorchScript already: save it, and register its file with packhorse model register")
    if not isinstance(model, nn.Module):
        raise ExportError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", folder.name):
        raise ExportError(f"folder: its name {folder.name!r} becomes the model's: expected up to 128 letters, digits, '.', '_' and '-'")
    for option, value, kinds in (("slo_ms", slo_ms, (int, float)), ("max_batch_size", max_batch_size, (int,))):
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ExportError(f"{option}: expected a number, got {value!r}")
    if not 0 < slo_ms <= MAX_SLO_MS:
        raise ExportError(f"slo_ms: expected a number above 0 and at most {MAX_SLO_MS}, got {slo_ms}")
    if pad and max_batch_size == 0:
        raise ExportError("pad: only rows of a batch are filled up: leave it out, or set max_batch_size")
    if not 0 <= max_batch_size <= MAX_BATCH_SIZE:
        raise ExportError(f"max_batch_size: expected 0 to {MAX_BATCH_SIZE}, got {max_batch_size}")


def check_files(labels: Sequence[str], files: Mapping[str, bytes], outputs: Sequence[str] | None) -> None:
    for option, value in (("labels", labels), ("outputs", outputs)):
        if isinstance(value, str):
            raise ExportError(f"{option}: expected a sequence of names, got the text {value!r}")
    if broken := [label for label in labels if "\n" in str(label)]:
        raise ExportError(f"labels: {broken[0]!r} has more than one line")
    ours = ("model.pt", "model.pt2", "labels.txt")
    if wrong := [name for name in files if name in ours or Path(name).name != name]:
        raise ExportError(f"files: {wrong[0]!r}: expected a file's name alone, and none of {', '.join(ours)}")


def processing_of(
    registration: dict, preprocess: Mapping[str, Mapping], labels: Sequence[str] | None, embeds: Mapping[str, Any] | None, notes: list[str]
) -> dict:
    """What the registration says of pictures and texts."""
    inputs = {spec["name"]: spec for spec in registration["inputs"]}
    texts = {name for name, declared in preprocess.items() if declared.get("kind") == "text"}
    if unknown := sorted(set(preprocess) - set(inputs) - texts):
        raise ExportError(f"preprocess: there is no input {', '.join(unknown)}; the inputs are {', '.join(inputs)}")
    said: dict[str, Any] = {}
    for name, declared in preprocess.items():
        if name in texts:
            problem = _texts.misfit(declared, inputs)
        else:
            problem = _pictures.misfit(declared, inputs[name]["shape"], inputs[name]["datatype"])
        if problem:
            notes.append(f"no preprocess is declared for {name}: {problem}")
        else:
            said.setdefault("preprocess", {})[name] = dict(declared)
    if said and labels is not None and (classes := _pictures.classes_of(registration["outputs"], labels)):
        said["postprocess"] = classes
    if said and embeds is not None and (embedding := _texts.embedding_of(registration["outputs"], embeds)):
        said["postprocess"] = embedding
    return said


def examples(call: Call, max_batch_size: int) -> list[Tensor]:
    """The example with two rows at least, since PyTorch freezes a size of one."""
    if max_batch_size == 0:
        return list(call.tensors)
    rows = {name: tensor.shape[0] if tensor.dim() else None for name, tensor in zip(call.names, call.tensors, strict=True)}
    if len(set(rows.values())) > 1 or not all(rows.values()):
        found = ", ".join(f"{name} has {size or 'none'}" for name, size in rows.items())
        raise ExportError(
            f"example_inputs: the first dimension of every tensor is the batch, and {found}: wrap the model in a module that takes the batch first, "
            "or export without a batch dimension (max_batch_size=0)"
        )
    wanted = min(2, max_batch_size)
    return [torch.cat([tensor] * wanted)[: max(wanted, min(len(tensor), max_batch_size))] for tensor in call.tensors]


def output_names(flat: Flat, tensors: Sequence[Tensor]) -> list[str]:
    """The outputs of the module's first answer."""
    try:
        return list(flat.named(copied(tensors)))
    except ExportError:
        raise
    except Exception as e:
        raise ExportError(f"the model fails with the example inputs: {explained(e)}") from e


@contextlib.contextmanager
def as_it_is_served(model: nn.Module) -> Iterator[None]:
    """Has the model answer as it does when served, and be as it was afterwards: evaluated, without gradients and without PyTorch's second
    implementation of transformers, which follows no other sizes. Keeps PyTorch's notices of tracing to itself, since the answers are compared."""
    trained = {module: module.training for module in model.modules()}
    buffers = [(module, name, buffer, buffer.clone()) for module in trained for name, buffer in module._buffers.items() if buffer is not None]
    fast = torch.backends.mha.get_fastpath_enabled()
    logger = logging.getLogger("torch")
    level = logger.level
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        logger.setLevel(logging.CRITICAL)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, was in trained.items():
            module.training = was
        with torch.no_grad():
            for module, name, buffer, content in buffers:
                module._buffers[name] = buffer.copy_(content)


def traced(flat: Flat, tensors: Sequence[Tensor], file: Path, registration: str) -> Run:
    """Saves a trace with its registration in it; what runs the file."""
    try:
        program = torch.jit.trace(flat, tuple(copied(tensors)), check_trace=False, strict=False)
    except Exception as e:
        raise ExportError(f"the model cannot be traced: {e}; try an AOTInductor package (compile=True, --compile)") from e
    # PyTorch ends the process if it cannot write a file itself.
    content = io.BytesIO()
    torch.jit.save(program, content, _extra_files={EMBEDDED: registration})
    file.write_bytes(content.getbuffer())
    return torch.jit.load(str(file))


def compiled(signature: Signature, file: Path, registration: str) -> Run:
    """Compiles an AOTInductor package with its registration in it; what runs the file."""
    try:
        # The lower bounds are PyTorch's, which tries no size below two: those of the model are in the registration, and its answers are compared.
        configs = {"aot_inductor.metadata": {EMBEDDED.removesuffix(".json"): registration}, "aot_inductor.check_lowerbound": False}
        torch._inductor.aoti_compile_and_package(signature.program, package_path=str(file), inductor_configs=configs)
    except Exception as e:
        raise ExportError(f"the model cannot be compiled: {e}; leave out compile=True (--compile) for TorchScript") from e
    return torch._inductor.aoti_load_package(str(file))


def write_request(folder: Path, flat: Flat, signature: Signature, outputs: list[str]) -> None:
    """Writes the body of a request of the first row and what it is answered, unless they are large or JSON has no such numbers."""
    row = [tensor[:1] if signature.first else tensor for tensor in signature.tensors]
    bodies = {}
    for file, field, names, tensors in (
        ("request.json", "inputs", signature.names, row),
        ("answer.json", "outputs", outputs, flat(*copied(row))),
    ):
        has_no_json = any(tensor.dtype in (torch.float16, torch.bfloat16) or not bool(tensor.isfinite().all()) for tensor in tensors)
        if has_no_json or sum(tensor.numel() for tensor in tensors) > REQUEST_ELEMENTS:
            return
        body = [
            {"name": name, "datatype": DATATYPES[tensor.dtype], "shape": list(tensor.shape), "data": tensor.flatten().tolist()}
            for name, tensor in zip(names, tensors, strict=True)
        ]
        bodies[file] = json.dumps({field: body}) + "\n"
    for file, body in bodies.items():
        (folder / file).write_text(body)


def check_limits(registration: dict) -> None:
    """Refuses what no registration can have."""
    for side in ("inputs", "outputs"):
        tensors = registration[side]
        if len(tensors) > MAX_TENSORS:
            raise ExportError(f"{side}: expected at most {MAX_TENSORS}, got {len(tensors)}: wrap the model in a module that stacks them or leaves some out")
        for tensor in tensors:
            if 0 in tensor["shape"]:
                raise ExportError(f"{side}: {tensor['name']} has the shape {tensor['shape']}: no dimension may be 0; leave it out")


def lines(registration: dict) -> str:
    """JSON with a line for each field and tensor."""
    processing = {field: {} for field in ("preprocess", "postprocess") if field in registration}
    text = json.dumps(registration | {"inputs": [], "outputs": []} | processing, indent=2)
    for field in processing:
        text = text.replace(f'"{field}": {{}}', f'"{field}": {json.dumps(registration[field])}')
    for side in ("inputs", "outputs"):
        tensors = ",\n    ".join(json.dumps(tensor) for tensor in registration[side])
        text = text.replace(f'"{side}": []', f'"{side}": [\n    {tensors}\n  ]')
    return text + "\n"
