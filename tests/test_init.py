"""A model's file alone is registered: it tells its signature, a run tells its outputs, and what nobody knows is asked for."""

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import packhorse
import pytest
import torch
import triton_clients
from cluster import PROGRAMS
from test_serve import Serve, serving_on_cpu, wait_for_repository_finding
from torch import Tensor, nn


class Net(nn.Module):
    """One input and one output."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.turn(x), 1)


class Text(nn.Module):
    """Two inputs of tokens, and two outputs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return hidden, hidden.sum(1)


class Centred(nn.Module):
    """Its rows depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Clamped(nn.Module):
    """What is kept of a row depends on the largest number of all."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, x.max() - 8.0)


class Crowded(nn.Module):
    """It does something else with more than four rows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 4:
            return x + 1
        return x


class Longest(nn.Module):
    """Each length is a part of the longest one."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x * (lengths.float() / lengths.max().clamp(min=1)).unsqueeze(1)


class Dropping(nn.Module):
    """Traced in training mode, it answers at random."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x)


class Keyed(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"twice": 2 * x, "half": x / 2}


class Titled(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x, "title"


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind().eval()


def tokens(rows: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 90, (rows, length)), torch.ones(rows, length, dtype=torch.int64)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    torch.jit.trace(made(Net), torch.randn(2, 16)).save(folder / "traced.pt")
    torch.jit.trace(made(Text), tokens(2, 16)).save(folder / "text.pt")
    torch.jit.trace(made(Centred), torch.randn(2, 3)).save(folder / "centred.pt")
    torch.jit.trace(made(Clamped), torch.randn(2, 3)).save(folder / "clamped.pt")
    torch.jit.script(made(Crowded)).save(folder / "crowded.pt")
    torch.jit.trace(made(Longest), (torch.randn(2, 3), torch.tensor([3, 2]))).save(folder / "longest.pt")
    torch.jit.script(made(Net)).save(folder / "scripted.pt")
    torch.jit.trace(Dropping(), torch.randn(2, 16), check_trace=False).save(folder / "training.pt")
    torch.jit.script(made(Keyed)).save(folder / "keyed.pt")
    torch.jit.script(made(Titled)).save(folder / "titled.pt")
    packhorse.export(made(Text), tokens(2, 16), folder / "script", slo_ms=2000)
    packhorse.export(made(Net), torch.randn(2, 16), folder / "package", slo_ms=2000, compile=True)
    shutil.copy(folder / "script/1/model.pt", folder / "ours.pt")
    shutil.copy(folder / "package/1/model.pt2", folder / "ours-compiled.pt2")
    rewrite(folder / "package/1/model.pt2", folder / "compiled.pt2", lambda registration: None)
    rewrite(folder / "script/1/model.pt", folder / "contradicting.pt", lambda registration: registration.replace("INT64", "INT32"))
    return folder


def rewrite(file: Path, other: Path, change) -> None:
    """Copies an archive with another registration in it, or none."""
    with zipfile.ZipFile(file) as read, zipfile.ZipFile(other, "w") as written:
        for member in read.namelist():
            content = read.read(member)
            if member.endswith("wrapper_metadata.json"):
                metadata = json.loads(content)
                metadata["packhorse"] = change(metadata["packhorse"])
                content = json.dumps({key: value for key, value in metadata.items() if value is not None}).encode()
            elif member.endswith("extra/packhorse.json"):
                content = change(content.decode()).encode()
            written.writestr(zipfile.ZipInfo(member), content)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving_on_cpu(tmp_path_factory.mktemp("serve")) as running:
        yield running


def command(*arguments, serving: Serve | None = None, code: int = 0) -> subprocess.CompletedProcess:
    line = [str(PROGRAMS / "packhorse"), *map(str, arguments)]
    if serving:
        line += ["--admin-url", f"http://{serving.admin.address}", "--token-file", str(serving.state / "admin-token")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (line, done.stdout, done.stderr)
    return done


# The file, the flags that its format needs, the module with the same weights, and what it is asked.
SERVED = [
    ("traced.pt", [], Net, {"x": torch.randn(3, 16)}),
    ("scripted.pt", ["--input", "x=FP32[-1,16]"], Net, {"x": torch.randn(3, 16)}),
    ("text.pt", [], Text, dict(zip(("input_ids", "attention_mask"), tokens(3, 16), strict=True))),
    ("compiled.pt2", [], Net, {"input": torch.randn(3, 16)}),
    ("ours.pt", [], Text, dict(zip(("input_ids", "attention_mask"), tokens(3, 21), strict=True))),
    ("ours-compiled.pt2", [], Net, {"x": torch.randn(3, 16)}),
]


@pytest.mark.parametrize(("file", "flags", "kind", "asked"), SERVED, ids=[case[0] for case in SERVED])
def test_one_command_registers_a_file_and_its_answers_are_those_of_pytorch(serving: Serve, files: Path, file: str, flags: list, kind: type, asked: dict):
    name = file.replace(".", "-")
    command("model", "register", files / file, "--name", name, "--slo-ms", 5000, "--wait", *flags, serving=serving)
    view = serving.admin.get(f"/v1/models/{name}")
    assert (view["state"], view["max_batch_size"], view["slo_ms"]) == ("ready", 8, 5000)
    with torch.no_grad():
        wanted = made(kind)(*asked.values())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    client = triton_clients.connect("sync", serving.inference)
    try:
        answer = client.infer(name, triton_clients.tensors({key: tensor.numpy() for key, tensor in asked.items()}))
        outputs = [output["name"] for output in view["outputs"]]
        assert len(outputs) == len(wanted)
        for output, tensor in zip(outputs, wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(answer.as_numpy(output).copy()), tensor, atol=1e-5, rtol=1e-5)
    finally:
        client.close()


def described(file: Path, *flags: str) -> dict:
    return json.loads(command("model", "init", file, "--slo-ms", 50, "--json", *flags).stdout)


def test_what_export_has_written_tells_all_of_it(files: Path):
    for name, file in [("script", "1/model.pt"), ("package", "1/model.pt2")]:
        written = command("model", "init", files / name / file).stdout
        assert written == (files / name / "model.json").read_text()
    report = described(files / "ours-compiled.pt2")
    assert report["machine"] and report["cpu_isa"] and report["device"] == "cpu"
    assert report["missing"] == []


def test_a_package_without_a_registration_tells_its_inputs_and_their_bounds(files: Path):
    report = described(files / "compiled.pt2")
    assert report["registration"] == {
        "name": "compiled",
        "max_batch_size": 8,
        "slo_ms": 50,
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 4]}],
    }


def test_sizes_of_a_trace_are_kept_unless_somebody_says_that_they_vary(files: Path):
    report = described(files / "text.pt")
    assert [spec["shape"] for spec in report["registration"]["inputs"]] == [[-1, 16], [-1, 16]]
    assert "--input 'input_ids=INT64[-1,-1]'" in report["notes"][0]
    varying = [flag for name in ("input_ids", "attention_mask") for flag in ("--input", f"{name}=INT64[-1,-1]")]
    report = described(files / "text.pt", *varying)
    assert [spec["typical_shape"] for spec in report["registration"]["inputs"]] == [[-1, 16], [-1, 16]]
    assert [spec["shape"] for spec in report["registration"]["outputs"]] == [[-1, -1, 8], [-1, 8]]


def test_rows_that_depend_on_each_other_are_no_batch(files: Path):
    report = described(files / "centred.pt")
    assert report["registration"]["max_batch_size"] == 0
    assert report["registration"]["inputs"][0]["shape"] == [2, 3]
    assert "requests do not share batches: a row alone has another answer than in a batch of 2" in report["notes"][0]


@pytest.mark.parametrize(
    ("file", "flags", "why"),
    [
        ("clamped.pt", (), "(rows of very different magnitude)"),
        ("crowded.pt", ("--input", "x=FP32[-1,3]"), "a row alone has another answer than in a batch of 5"),
        ("longest.pt", (), "a row alone has another answer than in a batch of 2"),
    ],
)
def test_what_depends_on_other_rows_in_some_batches_only_is_no_batch(files: Path, file: str, flags: tuple, why: str):
    report = described(files / file, *flags)
    assert report["registration"]["max_batch_size"] == 0
    assert why in report["notes"][0]


def test_a_file_whose_weights_are_damaged_is_refused(files: Path, serving: Serve, tmp_path: Path):
    content = bytearray((files / "scripted.pt").read_bytes())
    weights = made(Net).turn.weight.detach().numpy().tobytes()
    content[content.index(weights) + 100] ^= 64
    (tmp_path / "damaged.pt").write_bytes(content)
    # libtorch answers with it.
    assert torch.jit.load(tmp_path / "damaged.pt")(torch.randn(1, 16)).shape == (1, 4)
    refused = command("model", "register", tmp_path / "damaged.pt", "--input", "x=FP32[-1,16]", "--slo-ms", 50, serving=serving, code=1)
    assert "has not the size or the checksum that the archive says" in refused.stderr and "data/0" in refused.stderr


def test_a_trace_in_training_mode_is_said(files: Path):
    report = described(files / "training.pt")
    (missing,) = report["missing"]
    assert "differently each time, as a module in training mode does: call eval()" in missing["reason"]


def test_what_nobody_knows_is_named_with_the_command_that_asks_for_it(serving: Serve, files: Path, tmp_path: Path):
    said = command("model", "register", files / "scripted.pt", "--slo-ms", 50, serving=serving, code=1).stderr
    assert "inputs[0]: the file tells neither its datatype nor its shape: give --input 'x=DATATYPE[-1,SIZES]'" in said
    line = said.splitlines()[-1].strip()
    assert line.startswith("packhorse model init ") and line.endswith(f"-o {files / 'scripted.json'}")
    # What init writes without it names the field when it is registered.
    written = tmp_path / "scripted.json"
    command("model", "init", files / "scripted.pt", "-o", written)
    refused = command("model", "register", written, "--artifact", files / "scripted.pt", "--slo-ms", 50, serving=serving, code=1)
    assert 'inputs[0].datatype is "?"' in refused.stderr
    assert "exists" in command("model", "init", files / "scripted.pt", "-o", written, code=1).stderr
    command("model", "init", files / "scripted.pt", "-o", written, "--overwrite", "--slo-ms", 5000, "--name", "by-file", "--input", "x=FP32[-1,16]")
    command("model", "register", written, "--artifact", files / "scripted.pt", "--wait", serving=serving)


def test_a_contradiction_is_said(files: Path, serving: Serve):
    said = command("model", "register", files / "contradicting.pt", "--slo-ms", 50, serving=serving, code=1).stderr
    assert "inputs[0].datatype is INT32 in it and INT64 in the program of the same file" in said
    said = command("model", "init", files / "traced.pt", "--input", "x=INT64[-1,16]", code=1).stderr
    assert 'inputs: "x": it is FP32 in the file, not INT64' in said
    said = command("model", "init", files / "traced.pt", "--input", "x=FP32[-1,17]", "--json").stdout
    assert "a run of the program does not tell them: the model threw" in json.loads(said)["missing"][0]["reason"]


def test_without_a_run_outputs_are_said_by_flags(files: Path):
    report = described(files / "traced.pt", "--no-trial")
    assert [missing["field"] for missing in report["missing"]] == ["outputs"]
    report = described(files / "traced.pt", "--no-trial", "--output", "probabilities=FP32[-1,4]")
    assert report["missing"] == []
    assert report["registration"]["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 4]}]


class Exported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def wrong_files(folder: Path) -> list[tuple[str, str]]:
    """Files that are no programs, with what is said of each."""
    state = {"w": torch.ones(3)}
    torch.save(state, folder / "state.pt")
    torch.save(Exported(), folder / "module.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.export.save(torch.export.export(Exported(), (torch.ones(2, 3),)), folder / "exported.pt2")
    torch.jit.script(Exported()).save(folder / "whole.pt")
    whole = (folder / "whole.pt").read_bytes()
    written = {
        "truncated.pt": whole[:-100],
        "pointer.pt": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        "page.pt": b"<!DOCTYPE html><html><title>Sign in</title></html>",
        "weights.safetensors": b"\x08\x00\x00\x00\x00\x00\x00\x00{\"w\":1} ",
        "model.onnx": b"\x08\x09\x12\x07pytorch\x3a\x04\x0a\x02\x08\x01",
        "sklearn.pkl": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}.",
        "empty.pt": b"",
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    with zipfile.ZipFile(folder / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("m/constants.pkl", b"")
        bomb.writestr("m/data.pkl", b"\x80\x02c__torch__\nNet\n.")
        bomb.writestr("m/code/__torch__.py", b"#" * (65 << 20))
    with zipfile.ZipFile(folder / "path.pt", "w") as path:
        path.writestr("m/constants.pkl", b"")
        path.writestr("m/../../../evil", b"")
    return [
        ("state.pt", "the file has weights (a state_dict) and no program: load them into the module"),
        ("module.pt", "the file is a pickled Python object of the class test_init.Exported"),
        ("old.pt", "the file has weights (a state_dict) and no program"),
        ("exported.pt2", "a program of torch.export.save, which is not compiled: compile it into a package"),
        ("truncated.pt", "ends too early: its download or copy is not whole, so fetch it again"),
        ("pointer.pt", "a pointer of Git LFS: fetch the file itself with git lfs pull"),
        ("page.pt", "the file is a web page: the download of the model has failed"),
        ("weights.safetensors", "weights (safetensors) and no program: load them into the module"),
        ("model.onnx", "an ONNX model, which is not served: take the module that it was exported from"),
        ("sklearn.pkl", "the file is a pickle of Python and has no program"),
        ("empty.pt", "the file is empty"),
        ("bomb.pt", "has 68157440 bytes, over the limit of 67108864"),
        ("path.pt", "which leads out of it"),
    ]


def test_a_file_that_is_no_program_is_named_with_the_next_step(files: Path, serving: Serve, tmp_path: Path):
    spec = tmp_path / "spec.json"
    command("model", "init", files / "traced.pt", "-o", spec, "--slo-ms", 50)
    for name, words in wrong_files(tmp_path):
        said = command("model", "register", tmp_path / name, "--slo-ms", 50, serving=serving, code=1).stderr
        assert words in said, name
        # A simulated device takes any file, an empty one, too.
        if name != "empty.pt":
            said = command("model", "register", spec, "--artifact", tmp_path / name, serving=serving, code=1).stderr
            assert words in said, name
        if name != "exported.pt2":
            assert words in command("model", "init", tmp_path / name, code=1).stderr, name
    report = described(tmp_path / "exported.pt2")
    assert report["registration"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [2, 3]}]
    assert "torch.export.save" in report["obstacle"]
    assert "returns Tuple[Tensor, str]" in described(files / "titled.pt")["obstacle"]
    keyed = described(files / "keyed.pt", "--input", "x=FP32[-1,16]")
    assert [output["name"] for output in keyed["registration"]["outputs"]] == ["twice", "half"]


def test_a_repository_serves_folders_without_a_registration(files: Path, tmp_path: Path):
    repository = tmp_path / "models"
    for name, file in [("ours", "ours.pt"), ("traced", "traced.pt"), ("scripted", "scripted.pt"), ("page", "page")]:
        (repository / name / "1").mkdir(parents=True)
        target = repository / name / "1/model.pt"
        if name == "page":
            target.write_text("<html>")
        else:
            shutil.copy(files / file, target)
    flags = ["--devices", "cpu", "--slo-ms", "3000", str(repository)]
    running = Serve(tmp_path, *flags, environment={"PACKHORSE_PROFILE_TIME_LIMIT_MS": "500"})
    try:
        running.wait_until_ready()
        for name, slo_ms in [("ours", 2000), ("traced", 3000)]:
            running.admin.wait_for_state(name, "ready", limit=120)
            assert running.admin.get(f"/v1/models/{name}")["slo_ms"] == slo_ms
        (finding,) = wait_for_repository_finding(running)
        cause = finding["cause"]
        assert "page/1: there is no model.json, and model.pt: the file is a web page" in cause
        assert f"packhorse model init {repository}/scripted/1/model.pt --input 'x=DATATYPE[-1,SIZES]' -o {repository}/scripted/model.json" in cause
        assert running.admin.call("PATCH", "/v1/models/traced", {"slo_ms": 1234}).status == 200
        assert running.process.stop() == 0
        # The next start changes nothing.
        running = Serve(tmp_path, *flags)
        running.wait_until_ready()
        assert running.admin.get("/v1/models/traced")["slo_ms"] == 1234
    finally:
        running.process.stop(60)


def test_arguments_in_another_order_are_refused(serving: Serve, files: Path, tmp_path: Path):
    written = tmp_path / "text.json"
    command("model", "init", files / "text.pt", "--input", "input_ids=INT64[-1,-1]", "--input", "attention_mask=INT64[-1,-1]", "-o", written)
    registration = json.loads(written.read_text()) | {"name": "turned", "slo_ms": 500}
    assert [spec["name"] for spec in registration["inputs"]] == ["input_ids", "attention_mask"]
    registration["inputs"].reverse()
    written.write_text(json.dumps(registration))
    refused = command("model", "register", written, "--artifact", files / "text.pt", serving=serving, code=1)
    assert "inputs: they are attention_mask, input_ids, and the program takes input_ids, attention_mask" in refused.stderr
