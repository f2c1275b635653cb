"""A model repository of Triton is served as it is, and imported: config.pbtxt in place of model.json."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import triton_clients
from cluster import PROGRAMS
from test_serve import Serve, wait_for_repository_finding
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class Pair(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first - second, first * 2 + second


class Turned(nn.Module):
    """A pair whose arguments are in the other order."""

    def forward(self, second: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return first - second, first * 2 + second


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (self.table(input_ids) * attention_mask.unsqueeze(-1)).sum(1)


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum().reshape(1)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Shift(nn.Module):
    def __init__(self, by: float):
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


X = torch.randn(2, 4)
IDS = torch.randint(0, 50, (2, 5)), torch.ones(2, 5, dtype=torch.int64)


def tensor(side: str, name: str, kind: str, dims: str, more: str = "") -> str:
    return f'{side} [ {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} {more} }} ]\n'


@dataclass
class Model:
    """A model of the repository: its configuration, the program of each version, and a request by the names of its inputs."""

    config: str
    programs: dict[int, nn.Module]
    example: tuple[Tensor, ...]
    # The inputs of a request in the order of the program's arguments.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    file: str = "model.pt"
    # The versions that are served; all of `programs` without it.
    served: tuple[int, ...] = ()


LIBTORCH = 'platform: "pytorch_libtorch"\n'
# Written after Triton's documentation, one convention each.
MODELS = {
    "classifier": Model(
        f"""name: "classifier"
{LIBTORCH}max_batch_size: 8
{tensor("input", "INPUT__0", "FP32", "[ 3, 16, 16 ]")}{tensor("output", "OUTPUT__0", "FP32", "[ 10 ]", 'label_filename: "labels.txt"')}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
dynamic_batching {{ preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }}
response_cache {{ enable: true }}
""",
        {1: Classifier()}, (torch.randn(2, 3, 16, 16),), ("INPUT__0",), ("OUTPUT__0",),
    ),
    "by-position": Model(
        f'{LIBTORCH}max_batch_size: 4\n{tensor("input", "INPUT__1", "FP32", "4")}{tensor("input", "INPUT__0", "FP32", "4")}'
        f'{tensor("output", "OUTPUT__1", "FP32", "4")}{tensor("output", "OUTPUT__0", "FP32", "4")}',
        {1: Pair()}, (X, torch.randn(2, 4)), ("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1"),
    ),
    "by-argument": Model(
        f'backend: "pytorch"\nmax_batch_size: 4\n{tensor("input", "second", "FP32", "[4]")}{tensor("input", "first", "FP32", "[4]")}'
        f'{tensor("output", "difference", "FP32", "[4]")}{tensor("output", "sum", "FP32", "[4]")}',
        {1: Pair()}, (X, torch.randn(2, 4)), ("first", "second"), ("difference", "sum"),
    ),
    "of-any-length": Model(
        f"{LIBTORCH}max_batch_size: 16  # rows\ninput {{ name: 'input_ids', data_type: TYPE_INT64; dims: -1 }}\n"
        "input < name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1 ] >\noutput { name: 'pooled' data_type: TYPE_FP32 dims: 6 }",
        {1: Embedding()}, IDS, ("input_ids", "attention_mask"), ("pooled",),
    ),
    "without-a-batch": Model(
        f'{LIBTORCH}max_batch_size: 0\n{tensor("input", "x", "FP32", "[ 2, 4 ]")}{tensor("output", "sum", "FP32", "[ 1 ]")}',
        {1: Sum()}, (X,), ("x",), ("sum",),
    ),
    "without-a-size": Model(
        f'{LIBTORCH}{tensor("input", "x", "FP32", "[ -1, 4 ]")}{tensor("output", "y", "FP32", "[ -1, 4 ]")}',
        {1: Twice()}, (X,), ("x",), ("y",),
    ),
    "a-file-of-its-own": Model(
        f'{LIBTORCH}default_model_filename: "net.pt"\nmax_batch_size: 2\n{tensor("input", "x", "FP32", "4")}{tensor("output", "y", "FP32", "4")}',
        {1: Twice()}, (X,), ("x",), ("y",), file="net.pt",
    ),
    "the-latest": Model(
        f'{LIBTORCH}max_batch_size: 2\n{tensor("input", "x", "FP32", "4")}{tensor("output", "y", "FP32", "4")}',
        {1: Shift(1), 2: Shift(2), 10: Shift(10)}, (X,), ("x",), ("y",), served=(10,),
    ),
    "two-of-three": Model(
        f'{LIBTORCH}max_batch_size: 2\nversion_policy: {{ specific {{ versions: [ 1, 3 ] }} }}\n'
        f'{tensor("input", "x", "FP32", "4")}{tensor("output", "y", "FP32", "4", "reshape: { shape: [ 4 ] }")}',
        {1: Shift(1), 2: Shift(2), 3: Shift(3)}, (X,), ("x",), ("y",), served=(1, 3),
    ),
    "of-two-orders": Model(
        f'{LIBTORCH}max_batch_size: 2\nversion_policy {{ all {{ }} }}\n{tensor("input", "second", "FP32", "4")}{tensor("input", "first", "FP32", "4")}'
        f'{tensor("output", "difference", "FP32", "4")}{tensor("output", "sum", "FP32", "4")}',
        {1: Pair(), 2: Turned()}, (X, torch.randn(2, 4)), ("first", "second"), ("difference", "sum"),
    ),
    "with-a-deadline": Model(
        f'{LIBTORCH}max_batch_size: 2\n{tensor("input", "x", "FP32", "4")}{tensor("output", "y", "FP32", "4")}'
        'dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 750000 } }\n'
        'parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }\noptimization { graph { level: 1 } }',
        {1: Twice()}, (X,), ("x",), ("y",),
    ),
}
# What is not served, with what is said of it.
REFUSED = {
    "an-ensemble": ('platform: "ensemble"\nensemble_scheduling { step [ { model_name: "a" model_version: -1 } ] }', "ensemble_scheduling: an ensemble"),
    "in-python": ('backend: "python"', 'config.pbtxt, line 1: backend: "python" is not served'),
    "of-onnx": ('platform: "onnxruntime_onnx"', 'platform: "onnxruntime_onnx" is not served'),
    "of-sequences": (MODELS["classifier"].config.replace('"classifier"', '""') + "sequence_batching { }", "sequence_batching: sequences are not batched"),
    "of-text": (f'{LIBTORCH}{tensor("input", "x", "STRING", "1")}', "input.data_type: PyTorch has no tensors of TYPE_STRING"),
    "misspelt": (f"{LIBTORCH}max_batchsize: 3", "line 2: max_batchsize: there is no such field"),
    "broken": (f"{LIBTORCH}input [ {{", "line 2: a message does not end"),
}


def arguments(program: nn.Module, example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors in the order of a program's own arguments."""
    return example[::-1] if isinstance(program, Turned) else example


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton") / "models"
    torch.manual_seed(5)
    for name, model in MODELS.items():
        for version, program in model.programs.items():
            (folder / name / str(version)).mkdir(parents=True)
            torch.jit.trace(program.eval(), arguments(program, model.example)).save(folder / name / str(version) / model.file)
        (folder / name / "config.pbtxt").write_text(model.config)
    for name, (config, _) in REFUSED.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module")
def serving(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("serve")
    serve = Serve(folder, "--devices", "cpu", str(repository))
    try:
        serve.wait_until_ready()
        yield serve
    finally:
        assert serve.process.stop(60) == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_repository_is_served_as_it_is_and_answers_as_pytorch_does(serving: Serve, name: str):
    model = MODELS[name]
    client = triton_clients.connect("sync", serving.inference)
    for version in model.served or model.programs:
        serving.admin.wait_for_state(f"{name}?version={version}", "ready", limit=180)
        inputs = {named: example.numpy() for named, example in zip(model.inputs, model.example, strict=True)}
        answered = client.infer(name, triton_clients.tensors(inputs), model_version=str(version))
        with torch.no_grad():
            program = model.programs[version]
            expected = program(*arguments(program, model.example))
        for output, tensor in zip(model.outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
            np.testing.assert_allclose(answered.as_numpy(output), tensor.numpy(), rtol=1e-5, atol=1e-6)
    registered = [view["version"] for view in serving.admin.get("/v1/models") if view["name"] == name]
    assert sorted(registered) == list(model.served or model.programs)


def test_a_time_limit_is_the_objective(serving: Serve):
    assert serving.admin.get("/v1/models/with-a-deadline")["slo_ms"] == 750
    assert serving.admin.get("/v1/models/classifier")["slo_ms"] == 100


def test_a_response_cache_is_the_models_cache(serving: Serve):
    cached = {view["name"] for view in serving.admin.get("/v1/models") if view["cache"]}
    assert cached == {"classifier"}
    assert "response_cache" not in serving.process.log.read_text()


def test_what_is_not_served_is_said_by_name_and_the_others_serve(serving: Serve):
    (finding,) = wait_for_repository_finding(serving)
    said = serving.process.log.read_text()
    for name, (_, expected) in REFUSED.items():
        assert name in finding["text"]
        assert any(line.startswith(f"{name} is not served: ") and expected in line for line in said.splitlines()), expected
    assert "classifier: instance_group is left out: how many replicas run, and where, is planned\n" in said


def packhorse(*arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAMS / "packhorse", *arguments], capture_output=True, text=True, timeout=120)


def test_a_repository_is_imported_as_a_model_repository(repository: Path, tmp_path: Path):
    done = packhorse("import", repository, tmp_path / "models", "--json")
    assert done.returncode == 1 and f"{len(REFUSED) + 1} models not imported" in done.stderr, done
    told = json.loads(done.stdout)
    importable = {name: model for name, model in MODELS.items() if name != "of-two-orders"}
    assert [model["name"] for model in told["models"]] == sorted(importable)
    problems = {problem["place"]: problem["problem"] for problem in told["problems"]}
    assert set(problems) == {*REFUSED, "of-two-orders"}
    assert problems["of-two-orders"].startswith("its versions take their inputs in different orders")
    written = {path.relative_to(tmp_path / "models") for path in (tmp_path / "models").rglob("*") if path.is_file()}
    for name, model in importable.items():
        registration = json.loads((tmp_path / "models" / name / "model.json").read_text())
        assert [spec["name"] for spec in registration["inputs"]] == list(model.inputs)
        written.remove(Path(name, "model.json"))
        for version in model.served or model.programs:
            written.remove(Path(name, str(version), "model.pt"))
            copy, original = tmp_path / "models" / name / str(version) / "model.pt", repository / name / str(version) / model.file
            assert copy.read_bytes() == original.read_bytes()
    assert written == set()
    again = packhorse("import", repository, tmp_path / "models")
    assert again.returncode == 1 and f"classifier is not imported: {tmp_path}/models/classifier exists" in again.stderr, again


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path):
    (tmp_path / "models/a").mkdir(parents=True)
    for folder, expected in [("models/a", "has no folders: expected a model repository of Triton"), ("none", f"cannot read {tmp_path}/none")]:
        done = packhorse("import", tmp_path / folder, tmp_path / "out")
        assert done.returncode == 1 and expected in done.stderr, done
    done = packhorse("import", tmp_path / "models", tmp_path / "out")
    assert done.returncode == 1 and "a is not imported: there is no config.pbtxt" in done.stderr, done
    assert list((tmp_path / "out").iterdir()) == []
