"""Pictures as inputs: the committed digests are what the installed Pillow and torchvision make of them, and a served model answers pictures as PyTorch does."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import triton_clients
from http_admin import Answer, request
from PIL import Image
from test_init import command
from test_serve import Serve, serving_on_cpu
from torch import Tensor, nn
from torchvision.transforms import v2
from tritonclient.utils import InferenceServerException

PICTURES = Path(__file__).parents[1] / "crates/preprocess/tests/pictures"


def test_the_committed_digests_are_those_of_pillow():
    spec = importlib.util.spec_from_file_location("make_pictures", PICTURES / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    committed = json.loads((PICTURES / "expected.json").read_text())
    assert committed["declarations"] == make.DECLARATIONS
    files = make.committed(committed["sha256"]["bilinear"])
    assert make.expected(files) == committed["sha256"]


LABELS = [f"class {number}" for number in range(10)]
DECLARATION = {
    "kind": "image",
    "resize": {"shortest": 40},
    "filter": "bicubic",
    "crop": [32, 32],
    "rescale": 1 / 255,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
TRANSFORMS = v2.Compose(
    [
        v2.Resize(40, v2.InterpolationMode.BICUBIC),
        v2.CenterCrop(32),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(DECLARATION["mean"], DECLARATION["std"]),
    ]
)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 8, 5, stride=4)
        self.classes = nn.Linear(8 * 49, len(LABELS))

    def forward(self, image: Tensor) -> Tensor:
        return self.classes(self.features(image).relu().flatten(1))


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(5)
    return Classifier().eval()


@pytest.fixture(scope="module")
def serving(classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("serve")
    torch.jit.trace(classifier, torch.rand(2, 3, 32, 32)).save(folder / "classifier.pt")
    registration = {
        "name": "classifier",
        "slo_ms": 5000,
        "max_batch_size": 8,
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, len(LABELS)]}],
        "preprocess": {"image": DECLARATION},
        "postprocess": {"logits": {"softmax": True, "top_k": 3, "labels": LABELS}},
    }
    (folder / "classifier.json").write_text(json.dumps(registration))
    with serving_on_cpu(folder, "--grpc-listen", "127.0.0.1:0") as running:
        command("model", "register", folder / "classifier.json", "--artifact", folder / "classifier.pt", "--wait", serving=running)
        yield running


def wanted(classifier: Classifier, picture: str) -> Tensor:
    with Image.open(PICTURES / picture) as image, torch.no_grad():
        return classifier(TRANSFORMS(image.convert("RGB")).unsqueeze(0))[0]


def send(serving: Serve, body: bytes, kind: str = "image/jpeg") -> Answer:
    return request(serving.inference, "POST", "/v2/models/classifier/infer", body, {"content-type": kind, "x-packhorse-stages": "1"})


SERVED = ["420.jpg", "progressive.jpg", "tall.jpg", "turned-6.jpg", "rgb.png", "palette-alpha.png", "lossy.webp"]


@pytest.mark.parametrize("picture", SERVED)
def test_a_picture_is_answered_its_best_classes(picture: str, serving: Serve, classifier: Classifier):
    answer = send(serving, (PICTURES / picture).read_bytes(), f"image/{Path(picture).suffix[1:].replace('jpg', 'jpeg')}")
    assert answer.status == 200, answer
    stages = dict(stage.split(";dur=") for stage in answer.headers["server-timing"].split(", "))
    assert 0.0 < float(stages["decode"]) <= float(stages["total"])
    (output,) = answer.json()["outputs"]
    scores, classes = wanted(classifier, picture).softmax(0).topk(3)
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "BYTES", [1, 3])
    for text, score, number in zip(output["data"], scores.tolist(), classes.tolist(), strict=True):
        given, index, label = text.split(":")
        assert float(given) == pytest.approx(score, abs=1e-4)
        assert (int(index), label) == (number, LABELS[number])


def test_the_command_sends_pictures_as_they_are(serving: Serve, tmp_path: Path):
    jpeg, png = (PICTURES / picture for picture in ("420.jpg", "rgb.png"))
    flags = ["--url", f"http://{serving.inference}"]
    told = json.loads(command("infer", "classifier", "--image", jpeg, "--image", png, "--json", *flags, serving=serving).stdout)
    for row, picture in zip(told["classes"], (jpeg, png), strict=True):
        (output,) = send(serving, picture.read_bytes(), "image/any").json()["outputs"]
        assert [f"{of['score']:.4f}:{of['index']}:{of['label']}" for of in row] == [f"{float(text.split(':')[0]):.4f}:{text.split(':', 1)[1]}" for text in output["data"]]
    saved = tmp_path / "logits.npy"
    command("infer", "classifier", "--image", jpeg, "--output", f"logits={saved}", *flags, serving=serving)
    assert np.load(saved).shape == (1, len(LABELS))
    declared = request(serving.inference, "GET", "/v2/models/classifier", b"", {}).json()
    assert declared["raw_inputs"] == [{"name": "image", "kind": "image"}] and declared["classes"] == [{"output": "logits", "top_k": 3}]


def test_pictures_of_a_batch_are_answered_as_their_tensors(serving: Serve, classifier: Classifier):
    files = [(PICTURES / picture).read_bytes() for picture in SERVED]
    client = triton_clients.connect("sync", serving.inference)
    given = client.infer("classifier", triton_clients.tensors({"image": np.array(files, dtype=object)})).as_numpy("logits")
    client.close()
    expected = torch.stack([wanted(classifier, picture) for picture in SERVED])
    np.testing.assert_allclose(given, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ((PICTURES / "truncated.jpg").read_bytes(), ["image"]),
        ((PICTURES / "cmyk.jpg").read_bytes(), ["CMYK"]),
        ((PICTURES / "animated.webp").read_bytes(), ["animated"]),
        ((PICTURES / "picture.gif").read_bytes(), ["JPEG, PNG"]),
        (b"", ["empty"]),
        (b"\xff\xd8\xff", []),
        (b"{}", []),
        # A head that says 20,000 by 20,000 pixels, and nothing behind it.
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (20_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00" + bytes(900), ["20000"]),
    ],
)
def test_what_is_no_picture_is_refused_by_name(body: bytes, words: list[str], serving: Serve):
    answer = send(serving, body)
    assert answer.status == 400, answer
    for word in words:
        assert word in answer.error, answer.error


def test_a_bad_picture_among_others_is_named(serving: Serve):
    files = [(PICTURES / picture).read_bytes() for picture in ("420.jpg", "truncated.jpg")]
    client = triton_clients.connect("sync", serving.inference)
    with pytest.raises(InferenceServerException, match="picture 1"):
        client.infer("classifier", triton_clients.tensors({"image": np.array(files, dtype=object)}))
    client.close()
    assert send(serving, files[0]).status == 200
