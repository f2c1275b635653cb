"""What sources declare of pictures is in the registration, and a served export answers a picture as the source's own code does."""

import json
from collections.abc import Iterator
from pathlib import Path

import packhorse
import pytest
import torch
from http_admin import request
from packhorse import _pictures
from packhorse._sources import open_source
from PIL import Image
from test_serve import Serve, serving_on_cpu
from torch import nn
from torchvision.models import get_model_weights, list_models
from torchvision.models.quantization import ResNet18_QuantizedWeights
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

PICTURES = Path(__file__).parents[1] / "crates/preprocess/tests/pictures"
LABELS = ["tabby", "tiger", "lynx", "ocelot"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, nn.Module], ViTImageProcessor]:
    """Two exports as a user makes them, their modules, and the processor of the second."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(11)
    source = open_source("torchvision:resnet18", weights="random")
    packhorse.export(source.model, source.example_inputs, folder / "resnet18", slo_ms=5000, **source.options)
    vit = folder.parent / "vit"
    config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8)
    config.id2label, config.label2id = dict(enumerate(LABELS)), {label: i for i, label in enumerate(LABELS)}
    ViTForImageClassification(config).eval().save_pretrained(vit)
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, resample=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor.save_pretrained(vit)
    described = open_source(str(vit))
    packhorse.export(described.model, described.example_inputs, folder / "vit", slo_ms=5000, **described.options)
    return folder, {"resnet18": source.model.eval(), "vit": described.model.eval()}, processor


@pytest.fixture(scope="module")
def serving(folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving_on_cpu(tmp_path_factory.mktemp("serve"), str(folders[0])) as running:
        for name in folders[1]:
            running.admin.wait_for_state(name, "ready")
        yield running


def classes(serving: Serve, name: str, picture: str) -> list[list[str]]:
    answer = request(serving.inference, "POST", f"/v2/models/{name}/infer", (PICTURES / picture).read_bytes(), {"content-type": "image/jpeg"})
    assert answer.status == 200, answer
    (output,) = answer.json()["outputs"]
    return [text.split(":") for text in output["data"]]


@pytest.mark.parametrize("picture", ["420.jpg", "tall.jpg", "wide.jpg", "grey.jpg"])
def test_an_exported_model_of_torchvision_answers_pictures(picture: str, folders, serving: Serve):
    transforms = get_model_weights("resnet18").DEFAULT.transforms()
    with Image.open(PICTURES / picture) as image, torch.no_grad():
        scores, best = folders[1]["resnet18"](transforms(image.convert("RGB")).unsqueeze(0))[0].softmax(0).topk(5)
    given = classes(serving, "resnet18", picture)
    # Random weights have no labels.
    assert [int(index) for _, index in given] == best.tolist()
    torch.testing.assert_close(torch.tensor([float(score) for score, _ in given]), scores, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("picture", ["420.jpg", "tall.jpg"])
def test_an_exported_folder_of_hugging_face_answers_pictures_with_its_labels(picture: str, folders, serving: Serve):
    with Image.open(PICTURES / picture) as image, torch.no_grad():
        pixels = folders[2](image.convert("RGB"), return_tensors="pt")
        scores = folders[1]["vit"](**pixels).logits[0].softmax(0)
    given = classes(serving, "vit", picture)
    assert {label for _, _, label in given} == set(LABELS)
    for score, index, label in given:
        assert LABELS[int(index)] == label
        # Its processor may resize by torchvision, which rounds other than Pillow.
        assert float(score) == pytest.approx(float(scores[int(index)]), abs=5e-3)


def test_all_classifiers_of_torchvision_declare_what_the_registration_can_say():
    import torchvision

    names = list_models(module=torchvision.models)
    declared = {name: _pictures.of_torchvision(get_model_weights(name).DEFAULT.transforms()) for name in names}
    assert len(names) > 70 and [name for name, found in declared.items() if found is None] == []
    assert _pictures.of_torchvision(ResNet18_QuantizedWeights.DEFAULT.transforms()) is not None
    assert _pictures.of_torchvision(get_model_weights("r3d_18").DEFAULT.transforms()) is None


def test_declarations_of_timm():
    config = {"input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center", "mean": tuple(MEAN), "std": tuple(STD)}
    declared = _pictures.of_timm(config)
    assert declared == {
        "kind": "image",
        "resize": {"shortest": 248},
        "filter": "bicubic",
        "crop": [224, 224],
        "crop_rounding": "half-even",
        "rescale": 1 / 255,
        "mean": MEAN,
        "std": STD,
    }
    assert _pictures.of_timm(config | {"crop_mode": "squash"})["resize"] == {"exact": [248, 248]}
    assert _pictures.of_timm(config | {"crop_mode": "border"}) is None
    assert _pictures.of_timm(config | {"interpolation": "lanczos"}) is None


def test_declarations_of_hugging_face():
    plain = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True}
    plain |= {"crop_size": {"height": 224, "width": 224}, "image_mean": MEAN, "image_std": STD}
    declared = _pictures.of_huggingface(plain)
    assert declared["resize"] == {"shortest": 224} and declared["crop"] == [224, 224] and declared["crop_rounding"] == "floor"
    assert _pictures.of_huggingface(plain | {"image_processor_type": "CLIPImageProcessorFast", "size": 224, "crop_size": 224}) == declared
    assert _pictures.of_huggingface(plain | {"do_rescale": False, "do_normalize": False})["std"] == [1.0] * 3
    small = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}
    small |= {"image_mean": MEAN, "image_std": STD}
    assert (_pictures.of_huggingface(small)["resize"], _pictures.of_huggingface(small)["crop"]) == ({"shortest": 256}, [224, 224])
    assert _pictures.of_huggingface(small | {"size": {"shortest_edge": 384}})["resize"] == {"exact": [384, 384]}
    for other in ({"image_processor_type": "LevitImageProcessor"}, {"resample": 1}, {"do_resize": False}, {"image_mean": None}, {"do_center_crop": False}, {"crop_size": None}, {"size": {"longest_edge": 9}}):
        assert _pictures.of_huggingface(plain | other) is None, other
    assert _pictures.of_huggingface({}) is None


def test_a_declaration_that_does_not_fit_is_a_note_and_one_of_no_input_an_error(tmp_path: Path):
    declared = _pictures.of_torchvision(get_model_weights("resnet18").DEFAULT.transforms())
    model = nn.Sequential(nn.Conv2d(3, 2, 8, 8), nn.Flatten())
    made = packhorse.export(model, torch.randn(2, 3, 64, 64), tmp_path / "small", preprocess={"input": declared}, classifies=True)
    assert "preprocess" not in made.registration and "postprocess" not in made.registration
    assert "it makes rows of [3, 224, 224]" in "\n".join(made.notes)
    with pytest.raises(packhorse.ExportError, match="there is no input picture"):
        packhorse.export(model, torch.randn(2, 3, 64, 64), tmp_path / "other", preprocess={"picture": declared})
    assert not (tmp_path / "other").exists()
    made = packhorse.export(model, torch.randn(2, 3, 224, 224), tmp_path / "whole", preprocess={"input": declared}, classifies=True, labels=[str(i) for i in range(1568)])
    assert made.registration["postprocess"]["output"]["top_k"] == 5
    written = json.loads((tmp_path / "whole/model.json").read_text())
    assert written == made.registration and len((tmp_path / "whole/model.json").read_text().splitlines()) < 16
