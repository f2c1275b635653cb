"""`packhorse.export`: what it writes is served and answers as PyTorch does, and what it cannot write leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import packhorse
import pytest
import torch
import torchvision
import transformers
import triton_clients
from cluster import wait_until
from packhorse import _export, export_command
from packhorse._sources import open_source
from test_serve import Serve, serving_on_cpu
from torch import Tensor, nn

PYTHON = Path(__file__).parent.parent / "python"
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 500}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 500}
WAVE = {"conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2, "vocab_size": 30}
WAVE |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
LABELS = {0: "other", 1: "spam", 2: "ham"}


class Scored(nn.Module):
    """Numbers and categories."""

    def __init__(self):
        super().__init__()
        self.table, self.turn = nn.EmbeddingBag(50, 8), nn.Linear(4, 8)

    def forward(self, numbers: Tensor, categories: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        return {"score": (self.table(categories) * self.turn(numbers)).sum(1) * scale, "category": categories.argmax(1)}


class Stateful(nn.Module):
    """An LSTM for one step, with its state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        answer, after = self.lstm(x, tuple(part.transpose(0, 1).contiguous() for part in state))
        return answer, tuple(part.transpose(0, 1) for part in after)


COMPILED = """
import torch

def tiny():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), torch.randn(2, 4), {"slo_ms": 250}
"""


def compiled() -> nn.Module:
    made: dict = {}
    exec(COMPILED, made)
    return made["tiny"]()[0]


def image(rows: int, size: int = 32) -> Tensor:
    return torch.randn(rows, 3, size, size)


def text(rows: int, tokens: int) -> dict[str, Tensor]:
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1))
    return {"input_ids": torch.randint(5, 500, (rows, tokens)), "attention_mask": mask.long()}


@dataclass
class Case:
    """A model with the inputs that it is exported and asked with, both as keywords of `forward`."""

    make: Callable[[], nn.Module]
    example: dict
    asked: dict
    # The inputs' shapes in the registration.
    shapes: dict[str, list[int]]
    options: dict = field(default_factory=dict)


CASES = {
    "resnet18": Case(torchvision.models.resnet18, {"x": image(1)}, {"x": image(3)}, {"x": [-1, 3, 32, 32]}),
    "mobilenet": Case(
        torchvision.models.mobilenet_v3_small, {"x": image(2, 48)}, {"x": image(3, 40)}, {"x": [-1, 3, -1, -1]}, {"dynamic": {"x": {2: (33, 64), 3: (33, 64)}}}
    ),
    "lraspp": Case(
        lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None),
        {"input": image(2)},
        {"input": image(3)},
        {"input": [-1, 3, 32, 32]},
    ),
    "distilbert": Case(
        lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTIL)),
        text(2, 9),
        text(3, 14),
        {"input_ids": [-1, -1], "attention_mask": [-1, -1]},
    ),
    "vit": Case(
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**TINY, image_size=32, patch_size=8)),
        {"pixel_values": image(2)},
        {"pixel_values": image(3)},
        {"pixel_values": [-1, 3, 32, 32]},
    ),
    "t5-encoder": Case(
        lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)),
        text(2, 9),
        text(3, 14),
        {"input_ids": [-1, -1], "attention_mask": [-1, -1]},
    ),
    "wav2vec2": Case(
        lambda: transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**TINY, **WAVE)),
        {"input_values": torch.randn(2, 1600)},
        {"input_values": torch.randn(3, 2100)},
        {"input_values": [-1, -1]},
        {"dynamic": {"input_values": [1]}},
    ),
    "two-inputs": Case(
        Scored,
        {"numbers": torch.randn(2, 4), "categories": torch.randint(50, (2, 5)), "scale": 3.0},
        {"numbers": torch.randn(3, 4), "categories": torch.randint(50, (3, 7)), "scale": 3.0},
        {"numbers": [-1, 4], "categories": [-1, -1]},
    ),
    "lstm": Case(
        Stateful,
        {"x": torch.randn(2, 1, 6), "state": (torch.randn(2, 1, 8), torch.randn(2, 1, 8))},
        {"x": torch.randn(3, 1, 6), "state": (torch.randn(3, 1, 8), torch.randn(3, 1, 8))},
        {"x": [-1, 1, 6], "state_0": [-1, 1, 8], "state_1": [-1, 1, 8]},
    ),
}
# Those that the command exports: a folder of Hugging Face, and a function of a file, compiled.
BY_COMMAND = {
    "bert": Case(
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, vocab_size=500, max_position_embeddings=200, id2label=LABELS)),
        {},
        text(3, 14),
        {"input_ids": [-1, -1], "attention_mask": [-1, -1]},
    ),
    "compiled": Case(compiled, {}, {"input": torch.randn(3, 4)}, {"input": [-1, 4]}),
}


def command(*arguments: str | Path) -> subprocess.Popen:
    line = [sys.executable, "-m", "packhorse.export_command", *map(str, arguments)]
    return subprocess.Popen(line, env=os.environ | {"PYTHONPATH": str(PYTHON)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def made(name: str, case: Case) -> nn.Module:
    """The case's model, with the same weights each time."""
    torch.manual_seed(len(name))
    return case.make().eval()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository that was exported."""
    folder = tmp_path_factory.mktemp("export")
    # Threads that wait for a processor make small models slow.
    torch.set_num_threads(1)
    (folder / "tiny.py").write_text(COMPILED)
    compiling = command(f"{folder}/tiny.py:tiny", folder / "models/compiled", "--compile")
    for name, case in CASES.items():
        exported = packhorse.export(made(name, case), case.example, folder / "models" / name, slo_ms=2000, **case.options)
        assert exported.difference < 1e-5 and len(exported.compared) > 2, exported
    made("bert", BY_COMMAND["bert"]).save_pretrained(folder / "bert")
    (folder / "bert/tokenizer.json").write_text("{}")
    assert export_command.main([str(folder / "bert"), str(folder / "models/bert"), "--slo-ms", "2000"]) == 0
    said = compiling.communicate(timeout=300)[0]
    assert compiling.returncode == 0, said
    return folder / "models"


@pytest.fixture(scope="module")
def serving(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """The programs that serve the repository."""
    with serving_on_cpu(tmp_path_factory.mktemp("serve"), "--model-repository", str(repository)) as running:
        yield running


@pytest.mark.parametrize("name", [*CASES, *BY_COMMAND])
def test_an_exported_model_is_served_and_answers_as_pytorch_does(serving: Serve, repository: Path, name: str):
    case = (CASES | BY_COMMAND)[name]
    registration = json.loads((repository / name / "model.json").read_text())
    assert {spec["name"]: spec["shape"] for spec in registration["inputs"]} == case.shapes
    serving.admin.wait_for_state(name, "ready", limit=120)
    client = triton_clients.connect("sync", serving.inference)
    asked = dict(tensors(case.asked))
    answer = client.infer(name, triton_clients.tensors({key: tensor.numpy() for key, tensor in asked.items()}))
    with torch.no_grad():
        wanted = dict(tensors(made(name, case)(**case.asked)))
    assert {spec["name"] for spec in registration["outputs"]} == set(wanted)
    for output, tensor in wanted.items():
        torch.testing.assert_close(torch.from_numpy(answer.as_numpy(output).copy()), tensor, atol=1e-4, rtol=1e-4)
    # The folder has a request and its answer.
    request, kept = (json.loads((repository / name / file).read_text()) for file in ("request.json", "answer.json"))
    example = {spec["name"]: torch.tensor(spec["data"]).reshape(spec["shape"]) for spec in request["inputs"]}
    datatypes = {spec["name"]: spec["datatype"] for spec in request["inputs"]}
    assert datatypes == {spec["name"]: spec["datatype"] for spec in registration["inputs"]}
    answer = client.infer(name, triton_clients.tensors({key: tensor.numpy() for key, tensor in example.items()}))
    for spec in kept["outputs"]:
        data = torch.from_numpy(answer.as_numpy(spec["name"]).copy()).double()
        torch.testing.assert_close(data.flatten(), torch.tensor(spec["data"]).double(), atol=1e-4, rtol=1e-4)
    client.close()


def tensors(value, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in arguments and answers by name."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}_{key}" if name else key)
    elif isinstance(value, tuple):
        for i, inner in enumerate(value):
            yield from tensors(inner, f"{name or 'output'}_{i}")


def test_bounds_padding_labels_and_files_come_from_the_folder(repository: Path):
    registration = json.loads((repository / "bert/model.json").read_text())
    for spec in registration["inputs"]:
        assert spec["max_shape"] == [-1, 200] and "typical_shape" not in spec
        assert spec["pad"] == {"axis": 1, "value": 0}
        assert len(spec["example"]) == 128
    assert (repository / "bert/1/labels.txt").read_text() == "other\nspam\nham\n"
    assert (repository / "bert/1/tokenizer.json").read_text() == "{}"
    assert json.loads((repository / "compiled/model.json").read_text())["slo_ms"] == 250
    assert (repository / "compiled/1/model.pt2").is_file()


def test_a_sentence_encoder_has_the_pooling_of_its_folder(tmp_path: Path):
    encoder = bert().eval()
    encoder.save_pretrained(tmp_path / "encoder")
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in [("Transformer", ""), ("Pooling", "1"), ("Normalize", "2")]]
    (tmp_path / "encoder/modules.json").write_text(json.dumps(modules))
    (tmp_path / "encoder/sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    (tmp_path / "encoder/1").mkdir()
    (tmp_path / "encoder/1/config.json").write_text('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}')
    assert export_command.main([str(tmp_path / "encoder"), str(tmp_path / "models/encoder")]) == 0
    registration = json.loads((tmp_path / "models/encoder/model.json").read_text())
    assert [spec["max_shape"] for spec in registration["inputs"]] == [[-1, 60], [-1, 60]]
    assert [(spec["name"], spec["shape"]) for spec in registration["outputs"]] == [("sentence_embedding", [-1, 32])]
    inputs = text(3, 12)
    with torch.no_grad():
        (embedding,) = torch.jit.load(tmp_path / "models/encoder/1/model.pt")(*inputs.values())
        found = encoder(**inputs).last_hidden_state
    for row, length in enumerate(inputs["attention_mask"].sum(1)):
        torch.testing.assert_close(embedding[row], nn.functional.normalize(found[row, :length].mean(0), dim=0), atol=1e-5, rtol=1e-5)


def test_the_package_imports_nothing_heavy():
    code = "import packhorse, packhorse.export_command, sys; assert 'torch' not in sys.modules; packhorse.export; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(PYTHON)}, check=True)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Frozen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 3) * 2


class Gram(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"similarity": x @ x.T, "twice": x * 2}


class Writing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x)


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**TINY, vocab_size=500))


def clip() -> nn.Module:
    side = TINY | {"projection_dim": 16}
    config = transformers.CLIPConfig(
        text_config=side | {"vocab_size": 500, "eos_token_id": 2}, vision_config=side | {"image_size": 32, "patch_size": 8}, projection_dim=16
    )
    return transformers.CLIPModel(config)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class OfTokens(nn.Module):
    """A function of the embedding of tokens and their number."""

    def __init__(self, function):
        super().__init__()
        self.embedding, self.function = nn.Embedding(100, 8), function

    def forward(self, ids):
        return self.function(self.embedding(ids), ids.shape[1])


class Scaled(nn.Module):
    def forward(self, x, by):
        return x * by[0].item()


def ids(length: int) -> torch.Tensor:
    return torch.randint(0, 100, (2, length))


X = torch.randn(2, 3)
OTHERWISE = "does something else for some sizes"
REFUSED = {
    "a branch on a value": (Branching, X, {}, ["cannot be exported", f"at {__file__}:", "if x.sum() > 0:"]),
    "a mean over rows": (Centred, X, {}, ["rows depend on each other", "output output for 2x3 differs by"]),
    "a mean over two rows": (Centred, X, {"max_batch_size": 2}, ["rows depend on each other"]),
    "the largest number of a batch": (lambda: Function(lambda x: torch.maximum(x, x.max() - 8)), X, {}, ["rows depend on each other"]),
    "a rare largest number": (lambda: Function(lambda x: x / x.abs().max().clamp(min=30)), X, {}, ["rows depend on each other"]),
    "rows in another order": (lambda: Function(lambda x: x.flip(0)), X, {}, ["rows depend on each other"]),
    "a branch on a length": (lambda: OfTokens(lambda h, n: h.mean(1) if n > 64 else h.sum(1)), ids(128), {}, [OTHERWISE, "for 1x2"]),
    "a length of its own": (lambda: OfTokens(lambda h, n: h.sum(1) if n == 7 else h.mean(1)), ids(30), {}, [OTHERWISE, "for 1x7"]),
    "even lengths": (lambda: OfTokens(lambda h, n: h.sum(1) if n % 2 == 0 else h.mean(1)), ids(30), {}, [OTHERWISE, "for 1x3"]),
    "lengths that are cut": (lambda: OfTokens(lambda h, n: h[:, : min(n, 64)].mean(1)), ids(20), {}, [OTHERWISE, "for 1x65"]),
    "a least length": (lambda: OfTokens(lambda h, n: h.sum(1) / max(n, 16)), ids(40), {}, [OTHERWISE, "for 1x1"]),
    "a number of rows of its own": (lambda: Function(lambda x: x * 2 if x.shape[0] == 5 else x), X, {}, [OTHERWISE, "for 5x3"]),
    "a number out of a tensor": (Scaled, {"x": X, "by": torch.tensor([3, 3])}, {}, ["takes a number out of a tensor", f"at {__file__}:", ".item()"]),
    "two results of one name": (lambda: Function(lambda x: {"a": {"b": x}, "a_b": -x}), X, {}, ["two results would be named a_b"]),
    "65 results": (lambda: Function(lambda x: [x] * 65), X, {}, ["outputs: expected at most 64, got 65"]),
    "a file in the artifact's place": (Gram, X, {"files": {"model.pt": b"x"}}, ["files: 'model.pt'"]),
    "a file outside": (Gram, X, {"files": {"../m": b"x"}}, ["files: '../m'"]),
    "an SLO that is text": (Gram, X, {"slo_ms": "100"}, ["slo_ms: expected a number, got '100'"]),
    "rows by rows": (Gram, X, {}, ["output similarity is 1x1 for a row and 2x2 for two", "there are similarity, twice"]),
    "CLIP": (clip, text(2, 8) | {"pixel_values": image(2)}, {}, ["output logits_per_image is 1x1 for a row and 2x2 for two", "text_embeds, image_embeds"]),
    "a number of rows in the code": (Frozen, X, {}, ["its code works with 2 rows only"]),
    "random answers": (Noisy, X, {}, ["answers the same inputs differently each time"]),
    "a state that begins with layers": (lambda: nn.LSTM(3, 4), (X, (X[:1], X[:1])), {}, ["input has 2, hx_0 has 1, hx_1 has 1"]),
    "another argument": (Gram, {"y": X}, {}, ["example_inputs: missing a required argument: 'x'; Gram.forward takes x"]),
    "no tensor": (Gram, [3], {}, ["example_inputs: there is no tensor"]),
    "numbers that are all the same": (bert, {"input_ids": torch.ones(2, 5, dtype=torch.long)}, {}, ["example_inputs: all numbers are the same"]),
    "another size": (lambda: nn.Linear(4, 4), X, {}, ["the model fails with the example inputs: RuntimeError: mat1 and mat2 shapes cannot be multiplied"]),
    "a value for no input": (Gram, X, {"pad": {"y": 0}}, ["pad: there is no input y; the inputs are x"]),
    "another output": (Gram, X, {"outputs": ["z"]}, ["outputs: there is no z; the model returns similarity, twice"]),
    "an unknown input": (Gram, X, {"dynamic": {"y": [1]}}, ["dynamic: there is no input y; the inputs are x"]),
    "a dimension that does not vary": (lambda: nn.Linear(3, 4), X, {"dynamic": {"input": [1]}}, ["dimension 1 of input at 3 only"]),
    "the batch as a dimension": (Gram, X, {"dynamic": {"x": [0]}}, ["dimension 0 of x: expected 1 to 1"]),
    "complex numbers": (lambda: nn.Identity(), X.cfloat(), {}, ["input is torch.complex64, which no request can have"]),
    "an SLO of an hour": (Gram, X, {"slo_ms": 3_600_000}, ["slo_ms: expected a number above 0 and at most 60000"]),
    "a batch of none": (Gram, X, {"max_batch_size": -1}, ["max_batch_size: expected 0 to 4096"]),
    "a function": (lambda: torch.relu, X, {}, ["expected a torch.nn.Module"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path: Path, case: str):
    make, example, options, expected = REFUSED[case]
    with pytest.raises(packhorse.ExportError) as refused:
        packhorse.export(make(), example, tmp_path / "m", **options)
    assert all(part in str(refused.value) for part in expected), refused.value
    assert list(tmp_path.iterdir()) == []


def test_outputs_of_their_own_rows_are_exported_by_name(tmp_path: Path):
    exported = packhorse.export(clip(), text(2, 8) | {"pixel_values": image(2)}, tmp_path / "clip", outputs=["text_embeds", "image_embeds"])
    assert [(spec["name"], spec["shape"]) for spec in exported.registration["outputs"]] == [("text_embeds", [-1, 16]), ("image_embeds", [-1, 16])]


def test_a_model_is_afterwards_as_it_was(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout().eval(), nn.BatchNorm1d(3))
    packhorse.export(model.train(), X, tmp_path / "m")
    assert all(module.training for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled() and torch.is_grad_enabled()


def test_a_model_with_state_has_the_state_that_it_had(tmp_path: Path):
    model = nn.BatchNorm1d(3)
    counting = Function(lambda x: model.num_batches_tracked.add_(1) * 0 + x)
    counting.inner = model
    packhorse.export(counting, X, tmp_path / "m")
    assert model.num_batches_tracked == 0


def test_threads_export_one_after_the_other(tmp_path: Path):
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda name: packhorse.export(nn.Linear(3, 2), X, tmp_path / name), "abc"))
    assert [exported.difference for exported in made] == [0, 0, 0]


def test_numbers_that_json_has_not_are_in_no_example(tmp_path: Path):
    packhorse.export(Function(lambda x: x / 0), X, tmp_path / "m")
    assert not list((tmp_path / "m").glob("*est.json")) and not (tmp_path / "m/answer.json").exists()


@pytest.mark.parametrize(
    ("model", "example", "options", "why"),
    [
        (Function(lambda x: x.amax(1)), torch.randn(2, 20, 6), {"dynamic": {"x": [1]}, "pad": {"x": 0}}, "differs by"),
        (OfTokens(lambda h, n: nn.functional.avg_pool1d(h.transpose(1, 2), 2)), ids(20), {"pad": {"ids": 0}}, "is 3x8x10, and not 3x8x5"),
    ],
)
def test_what_filling_changes_is_not_padded(tmp_path: Path, model: nn.Module, example: torch.Tensor, options: dict, why: str):
    exported = packhorse.export(model, example, tmp_path / "m", **options)
    assert "pad" not in exported.registration["inputs"][0]
    assert exported.notes[0].startswith("no pad is declared: a filled row has another answer") and why in exported.notes[0], exported.notes


def test_short_texts_are_padded_up_to_their_limit(tmp_path: Path):
    config = transformers.BertConfig(**TINY, max_position_embeddings=64)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "source")
    source = open_source(str(tmp_path / "source"))
    exported = packhorse.export(source.model, source.example_inputs, tmp_path / "m", **source.options)
    assert all(spec["max_shape"] == [-1, 64] and spec["pad"] for spec in exported.registration["inputs"]), exported.notes


def test_a_model_may_write_to_its_inputs(tmp_path: Path):
    example = X.clone()
    packhorse.export(Writing(), example, tmp_path / "m")
    torch.testing.assert_close(example, X)
    request, answer = (json.loads((tmp_path / "m" / file).read_text()) for file in ("request.json", "answer.json"))
    torch.testing.assert_close((torch.tensor(request["inputs"][0]["data"]) + 1) * 2, torch.tensor(answer["outputs"][0]["data"]))


def test_a_model_without_a_batch_keeps_its_sizes(tmp_path: Path):
    lstm = nn.LSTM(6, 8)
    exported = packhorse.export(lstm, (torch.randn(5, 1, 6), (torch.randn(1, 1, 8), torch.randn(1, 1, 8))), tmp_path / "lstm", max_batch_size=0)
    assert [spec["shape"] for spec in exported.registration["inputs"]] == [[5, 1, 6], [1, 1, 8], [1, 1, 8]]


def test_an_existing_folder_is_replaced_only_if_asked(tmp_path: Path):
    folder = tmp_path / "m"
    packhorse.export(nn.Linear(3, 4), X, folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(packhorse.ExportError, match="exists: choose another folder"):
        packhorse.export(nn.Linear(3, 5), X, folder)
    # What fails leaves the old one.
    with pytest.raises(packhorse.ExportError, match="rows depend"):
        packhorse.export(Centred(), X, folder, overwrite=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert packhorse.export(nn.Linear(3, 5), X, folder, overwrite=True).registration["outputs"][0]["shape"] == [-1, 5]
    assert list(tmp_path.iterdir()) == [folder]
    (tmp_path / "home").mkdir()
    with pytest.raises(packhorse.ExportError, match="not a model's folder"):
        packhorse.export(nn.Linear(3, 5), X, tmp_path / "home", overwrite=True)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_export, "write_request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        packhorse.export(nn.Linear(3, 4), X, tmp_path / "new/models/m")
    assert list(tmp_path.iterdir()) == []


# A model whose first answer takes longer than any test.
SLOW = """
import time, torch

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(60)

def slow():
    return Slow(), torch.randn(2, 3)
"""


def test_a_signal_to_the_command_leaves_nothing(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    running = command(f"{tmp_path}/slow.py:slow", tmp_path / "models/m")
    wait_until(lambda: any((tmp_path / "models").glob(".m.*")), "the command to begin", limit=60)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 128 + signal.SIGTERM, running.stdout.read()
    assert not (tmp_path / "models").exists()


def test_what_a_killed_process_left_goes_with_the_next_export(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    models = tmp_path / "models"
    others = [models / ".m.training", models / ".mm.export-abcdefgh"]
    for other in others:
        other.mkdir(parents=True)
    killed, living = (command(f"{tmp_path}/slow.py:slow", models / "m") for _ in range(2))
    begun = lambda: set(models.glob(".m.export-*"))
    wait_until(lambda: len(begun()) == 2, "both to begin", limit=60)
    killed.kill()
    killed.wait(30)
    packhorse.export(nn.Linear(3, 4), X, models / "m")
    assert len(begun()) == 1 and all(other.is_dir() for other in others)
    living.send_signal(signal.SIGTERM)
    living.wait(30)
    assert set(models.iterdir()) == {models / "m", *others}


def test_arrays_of_numpy_are_examples(tmp_path: Path):
    array = X.numpy()
    exported = packhorse.export(nn.Linear(3, 4), array, tmp_path / "linear")
    assert exported.registration["inputs"][0]["datatype"] == "FP32"
    assert packhorse.export(Gram(), {"x": array}, tmp_path / "gram", outputs=["twice"]).registration["inputs"][0]["name"] == "x"
    other_order = packhorse.export(nn.Linear(3, 4), array.astype(">f4"), tmp_path / "swapped")
    assert other_order.registration == exported.registration | {"name": "swapped"}
    with pytest.raises(packhorse.ExportError, match="an array of object, which PyTorch has no tensor for"):
        packhorse.export(nn.Linear(3, 4), array.astype(object), tmp_path / "objects")


def test_a_file_may_be_called_like_a_module_of_python(tmp_path: Path):
    (tmp_path / "json.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(3, 4), torch.randn(2, 3)\n")
    before = sys.modules["json"]
    assert export_command.main([f"{tmp_path}/json.py:make", str(tmp_path / "models/m")]) == 0
    assert sys.modules["json"] is before


@pytest.mark.parametrize("shape", ["a", "3,224", "3,-1,224", "3,224,224,"])
def test_the_shape_of_an_image_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture, shape: str):
    with pytest.raises(SystemExit) as ended:
        export_command.main(["timm:resnet18", str(tmp_path / "m"), "--shape", shape])
    assert ended.value.code == 2
    assert f"--shape: '{shape}': expected 3,HEIGHT,WIDTH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing"], "'nothing' is neither timm:NAME, torchvision:NAME, FILE.py:FUNCTION nor a folder"),
        (["torchvision:fasterrcnn_resnet50_fpn", "--weights", "random"], "takes lists or pairs of images"),
        (["torchvision:resnet1", "--weights", "random"], "Unknown model resnet1"),
        (["nothing.py:f"], "there is no file nothing.py"),
        (["torchvision:alexnet", "--weights", "random", "--dynamic", "x"], "--dynamic: 'x': expected NAME:AXIS or NAME:AXIS:MIN:MAX"),
    ],
)
def test_the_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], expected: str):
    assert export_command.main([*arguments, str(tmp_path / "m")]) == 1
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
