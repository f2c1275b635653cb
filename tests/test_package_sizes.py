"""A package reads memory by the sizes of one input, and checks those of the others nowhere: no request reaches it with sizes that do not belong together."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import packhorse
import pytest
import torch
import triton_clients
from test_init import command
from test_serve import Serve, serving_on_cpu
from torch import Tensor, nn
from tritonclient.utils import InferenceServerException


class Masked(nn.Module):
    """Two inputs that share a length, and one with its own."""

    def forward(self, values: Tensor, mask: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return values * mask, other.cumsum(1)


def examples(length: int, other: int) -> dict[str, Tensor]:
    return {"values": torch.rand(2, length), "mask": torch.rand(2, length), "other": torch.rand(2, other)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of ours, and the same one as others compile it."""
    folder = tmp_path_factory.mktemp("packages")
    dynamic = {"values": [1], "mask": [1], "other": {1: (3, 64)}}
    packhorse.export(Masked(), examples(16, 5), folder / "ours", dynamic=dynamic, slo_ms=2000, compile=True)
    rows, length, other = torch.export.Dim("rows", max=8), torch.export.Dim("length", max=64), torch.export.Dim("other", max=32)
    sizes = {"values": {0: rows, 1: length}, "mask": {0: rows, 1: length}, "other": {0: rows, 1: other}}
    program = torch.export.export(Masked(), (), examples(16, 5), dynamic_shapes=sizes)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "foreign.pt2"))
    return folder


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving_on_cpu(tmp_path_factory.mktemp("serve")) as running:
        yield running


def answer(serving: Serve, model: str, asked: dict[str, Tensor]) -> list[np.ndarray]:
    client = triton_clients.connect("sync", serving.inference)
    try:
        given = client.infer(model, triton_clients.tensors({name: tensor.numpy() for name, tensor in asked.items()}))
        return [given.as_numpy(output["name"]) for output in given.get_response()["outputs"]]
    finally:
        client.close()


def refusal(serving: Serve, model: str, asked: dict[str, Tensor]) -> str:
    with pytest.raises(InferenceServerException) as refused:
        answer(serving, model, asked)
    return str(refused.value)


def check_answers(serving: Serve, model: str, sizes: list[tuple[int, int]]) -> None:
    """Asserts that inputs of these lengths are answered as PyTorch answers them."""
    for length, other in sizes:
        asked = examples(length, other)
        for given, wanted in zip(answer(serving, model, asked), Masked()(**asked), strict=True):
            np.testing.assert_allclose(given, wanted.numpy(), rtol=1e-5)


def test_an_export_names_the_sizes_that_are_shared_and_the_smallest_ones(files: Path, serving: Serve):
    registration = json.loads((files / "ours/model.json").read_text())
    values, mask, other = registration["inputs"]
    assert values["dim_names"] == mask["dim_names"] == [None, "values_1"] and other["dim_names"] == [None, "other_1"]
    assert other["min_shape"] == [-1, 3] and values["min_shape"] == [-1, 1]
    command("model", "register", files / "ours/1/model.pt2", "--name", "ours", serving=serving)
    serving.admin.wait_for_state("ours", "ready", limit=120)
    check_answers(serving, "ours", [(16, 5), (1, 3), (2, 64), (31, 4)])
    unequal = examples(64, 5) | {"mask": torch.rand(2, 2)}
    said = 'dimension 1 of "values" is 64, and dimension 1 of "mask" is 2: both are "values_1" (dim_names), and must be equal'
    assert said in refusal(serving, "ours", unequal)
    assert "below the limit of 1" in refusal(serving, "ours", examples(0, 5))
    assert "dimension 1 is 2, below the limit of 3 that the model declares (min_shape)" in refusal(serving, "ours", examples(16, 2))


def test_the_file_of_a_package_tells_which_sizes_are_shared(files: Path, serving: Serve):
    report = json.loads(command("model", "init", files / "foreign.pt2", "--slo-ms", 2000, "--json").stdout)
    inputs = report["registration"]["inputs"]
    assert [spec.get("dim_names") for spec in inputs] == [[None, "values_1"], [None, "values_1"], [None, "other_1"]]
    # It refuses a size of one, as PyTorch compiles it.
    assert [spec["min_shape"] for spec in inputs] == [[-1, 2]] * 3
    command("model", "register", files / "foreign.pt2", "--slo-ms", 2000, serving=serving)
    serving.admin.wait_for_state("foreign", "ready", limit=120)
    check_answers(serving, "foreign", [(16, 5), (2, 32)])
    assert "must be equal" in refusal(serving, "foreign", examples(64, 5) | {"mask": torch.rand(2, 2)})
    assert "below the limit of 2" in refusal(serving, "foreign", examples(1, 5))


def test_a_package_of_which_nobody_says_what_is_shared_refuses_other_sizes_itself(files: Path, serving: Serve, tmp_path: Path):
    spec = json.loads(command("model", "init", files / "foreign.pt2", "--slo-ms", 2000, "--json").stdout)["registration"]
    for tensor in spec["inputs"]:
        tensor.pop("dim_names")
        tensor.pop("min_shape")
        tensor["typical_shape"] = [-1, 16]
    (tmp_path / "model.json").write_text(json.dumps(spec | {"name": "unnamed"}))
    command("model", "register", tmp_path / "model.json", "--artifact", files / "foreign.pt2", serving=serving)
    serving.admin.wait_for_state("unnamed", "ready", limit=120)
    check_answers(serving, "unnamed", [(16, 16), (7, 7)])
    for asked in (examples(32, 32) | {"mask": torch.rand(2, 2)}, examples(16, 5)):
        said = refusal(serving, "unnamed", asked)
        assert "a package reads memory beyond such inputs" in said and "(dim_names)" in said
    check_answers(serving, "unnamed", [(16, 16)])
    # What is named says nothing of the other sizes.
    spec["inputs"][2]["dim_names"] = [None, "steps"]
    (tmp_path / "model.json").write_text(json.dumps(spec | {"name": "partly"}))
    command("model", "register", tmp_path / "model.json", "--artifact", files / "foreign.pt2", serving=serving)
    serving.admin.wait_for_state("partly", "ready", limit=120)
    check_answers(serving, "partly", [(16, 5)])
    assert "a package reads memory beyond such inputs" in refusal(serving, "partly", examples(32, 5) | {"mask": torch.rand(2, 2)})
