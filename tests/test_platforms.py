"""The contracts of KServe (version 1), SageMaker and Vertex AI: served models answer rows, pictures and texts as PyTorch and transformers do."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import packhorse
import pytest
import requests
import torch
from packhorse._sources import open_source
from test_init import command
from test_pictures import DECLARATION, LABELS, PICTURES, SERVED, Classifier, wanted
from test_serve import Serve, serving_on_cpu
from test_texts import MINILM, SENTENCES
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer


class Exact(nn.Module):
    """Numbers that lose something wherever they pass through a type that is not theirs."""

    def forward(self, large: Tensor, fine: Tensor, flag: Tensor, half: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return large + 1, fine / 3, ~flag, half * 2


NAMES = {"large": ("INT64", [-1, 2]), "fine": ("FP64", [-1]), "flag": ("BOOL", [-1]), "half": ("FP16", [-1])}


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(5)
    return Classifier().eval()


@pytest.fixture(scope="module")
def serving(classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("serve")
    source = open_source(str(MINILM))
    packhorse.export(source.model, source.example_inputs, folder / "models/minilm", slo_ms=20_000, max_batch_size=4, **source.options)
    torch.jit.trace(classifier, torch.rand(2, 3, 32, 32)).save(folder / "classifier.pt")
    torch.jit.script(Exact()).save(folder / "exact.pt")
    registered = {
        "classifier": {
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, len(LABELS)]}],
            "preprocess": {"image": DECLARATION},
            "postprocess": {"logits": {"softmax": True, "top_k": 3, "labels": LABELS}},
        },
        "exact": {
            "inputs": [{"name": name, "datatype": datatype, "shape": shape} for name, (datatype, shape) in NAMES.items()],
            "outputs": [{"name": f"{name}_out", "datatype": datatype, "shape": shape} for name, (datatype, shape) in NAMES.items()],
        },
    }
    environment = {"PACKHORSE_PLATFORM": "kserve-v1,sagemaker=classifier,vertex=minilm", "AIP_PREDICT_ROUTE": "/v1/endpoints/7/deployedModels/8:predict"}
    with serving_on_cpu(folder, str(folder / "models"), environment=environment) as running:
        for name, registration in registered.items():
            file = folder / f"{name}.json"
            file.write_text(json.dumps({"name": name, "slo_ms": 5000, "max_batch_size": 4, **registration}))
            command("model", "register", file, "--artifact", folder / f"{name}.pt", "--wait", serving=running)
        running.admin.wait_for_state("minilm", "ready", limit=120)
        yield running


def post(serving: Serve, path: str, **how: object) -> requests.Response:
    return requests.post(f"http://{serving.inference}{path}", timeout=60, **how)


def predictions(serving: Serve, path: str, **how: object) -> list:
    answer = post(serving, path, **how)
    assert answer.status_code == 200, answer.text
    (field,) = answer.json().items()
    assert field[0] == "predictions"
    return field[1]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """What transformers and PyTorch make of the sentences."""
    tokenizer, model = AutoTokenizer.from_pretrained(MINILM), AutoModel.from_pretrained(MINILM).eval()
    made = []
    for sentence in SENTENCES:
        tokens = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            made.append(nn.functional.normalize(model(**tokens).last_hidden_state[0].mean(0), dim=0).numpy())
    return np.stack(made)


def test_numbers_of_every_kind_are_those_of_pytorch(serving: Serve):
    rng = np.random.default_rng(3)
    count = 11  # three portions
    given = {
        "large": rng.integers(-(2**62), 2**62, (count, 2)),
        "fine": rng.standard_normal(count) * 10.0 ** rng.integers(-300, 300, count),
        "flag": rng.random(count) < 0.5,
        "half": rng.standard_normal(count).astype(np.float16),
    }
    expected = [tensor.numpy() for tensor in Exact()(*(torch.from_numpy(array) for array in given.values()))]
    columns = {name: array.tolist() for name, array in given.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for body in ({"instances": rows}, {"inputs": columns}):
        found = predictions(serving, "/v1/models/exact:predict", json=body)
        assert len(found) == count
        for name, array in zip(NAMES, expected, strict=True):
            answered = np.array([row[f"{name}_out"] for row in found])
            assert array.dtype == np.float16 or answered.dtype == array.dtype
            np.testing.assert_array_equal(answered.astype(array.dtype), array)


def test_pictures_and_their_tensors_are_answered_as_by_pytorch(serving: Serve, classifier: Classifier):
    files = [(PICTURES / picture).read_bytes() for picture in SERVED]
    rows = [{"b64": base64.b64encode(file).decode()} for file in files]
    answered = predictions(serving, "/v1/models/classifier:predict", json={"instances": rows})
    assert len(answered) == len(SERVED) > 4
    for picture, file, classes in zip(SERVED, files, answered, strict=True):
        scores, numbers = wanted(classifier, picture).softmax(0).topk(3)
        assert [(row["index"], row["label"]) for row in classes] == [(n, LABELS[n]) for n in numbers.tolist()]
        np.testing.assert_allclose([row["score"] for row in classes], scores, atol=1e-4)
        (alone,) = predictions(serving, "/invocations", data=file, headers={"content-type": "image/jpeg"})
        assert [row["label"] for row in alone] == [row["label"] for row in classes]
        np.testing.assert_allclose([row["score"] for row in alone], scores, atol=1e-4)
    torch.manual_seed(1)
    pixels = torch.rand(5, 3, 32, 32)
    answered = predictions(serving, "/v1/models/classifier:predict", json={"instances": pixels.tolist()})
    with torch.no_grad():
        np.testing.assert_allclose(answered, classifier(pixels), atol=1e-5)


def test_texts_are_answered_as_by_transformers(serving: Serve, vectors: np.ndarray):
    for path in ("/v1/models/minilm:predict", "/v1/endpoints/7/deployedModels/8:predict"):
        found = predictions(serving, path, json={"instances": SENTENCES})
        np.testing.assert_allclose(found, vectors, atol=2e-5)
    headers = {"content-type": "text/plain", "X-Amzn-SageMaker-Target-Model": "minilm"}
    alone = predictions(serving, "/invocations", data=SENTENCES[2].encode(), headers=headers)
    np.testing.assert_allclose(alone, vectors[2:3], atol=2e-5)


def test_platforms_ask_whether_their_model_is_ready_and_openai_for_its_list(serving: Serve):
    get = lambda path: requests.get(f"http://{serving.inference}{path}", timeout=60)
    assert get("/ping").status_code == get("/health").status_code == 200
    assert get("/v1/models/exact").json().items() >= {"name": "exact", "ready": True}.items()
    assert get("/v1/models").json()["models"] == ["classifier", "exact", "minilm"]
    client = openai.OpenAI(base_url=f"http://{serving.inference}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["classifier", "exact", "minilm"]
    assert client.models.retrieve("exact").id == "exact"
    client.close()


def test_what_is_wrong_is_named(serving: Serve):
    for path, how, status, words in (
        ("/v1/models/exact:predict", {"json": {"instances": [{"large": [1, 2]}]}}, 400, 'input "fine": missing'),
        ("/v1/models/classifier:predict", {"json": {"instances": [{"b64": "AAAA"}]}}, 400, "picture 0"),
        ("/v1/models/classifier:predict", {"data": b"[" * 100_000}, 400, "expected an object"),
        ("/v1/models/nothing:predict", {"json": {}}, 404, "nothing"),
        ("/invocations", {"json": {}, "headers": {"X-Amzn-SageMaker-Target-Model": "nothing"}}, 404, "nothing"),
    ):
        answer = post(serving, path, **how)
        assert answer.status_code == status and words in answer.json()["error"], answer.text
