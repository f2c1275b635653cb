"""Detection networks of torchvision, scripted as they are: their operators are the worker's, and their lists of dicts are outputs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import triton_clients
from test_init import command
from test_serve import Serve, serving_on_cpu
from torch import Tensor, nn
from torchvision.models import detection


class Detector(nn.Module):
    """A network that takes a list of images, for one of them."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        return self.network([image[0]])


SMALL = {"weights": None, "weights_backbone": None, "num_classes": 5, "min_size": 64, "max_size": 80}
# Random weights find nothing of which they are sure.
NETWORKS = {
    "faster-rcnn": lambda: detection.fasterrcnn_resnet50_fpn(**SMALL, box_score_thresh=0.0, box_detections_per_img=20),
    "mask-rcnn": lambda: detection.maskrcnn_resnet50_fpn(**SMALL, box_score_thresh=0.0, box_detections_per_img=10),
    "retinanet": lambda: detection.retinanet_resnet50_fpn(**SMALL, score_thresh=0.0, detections_per_img=20),
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5, score_thresh=0.0, detections_per_img=20),
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving_on_cpu(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_scripted_network_answers_what_torchvision_answers(name: str, serving: Serve, tmp_path: Path):
    make: Callable[[], nn.Module] = NETWORKS[name]
    torch.manual_seed(3)
    detector = Detector(make()).eval()
    torch.jit.script(detector).save(tmp_path / f"{name}.pt")
    # No batches: each image has boxes of its own.
    flags = ["--input", "image=FP32[1,3,120,150]", "--max-batch-size", 0, "--slo-ms", 60_000]
    command("model", "register", tmp_path / f"{name}.pt", *flags, "--wait", serving=serving)
    view = serving.admin.get(f"/v1/models/{name}")
    names = [output["name"] for output in view["outputs"]]
    assert names[:3] == ["output_0", "output_1", "output_2"], names
    client = triton_clients.connect("sync", serving.inference)
    for seed in range(2):
        image = torch.rand(1, 3, 120, 150, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            # Without a script the losses are left out.
                (wanted,) = detector(image)
        given = client.infer(name, triton_clients.tensors({"image": image.numpy()}))
        answers = [given.as_numpy(output) for output in names]
        assert len(wanted["boxes"]) > 0
        for answer, (key, tensor) in zip(answers, wanted.items(), strict=True):
            np.testing.assert_allclose(answer, tensor.numpy(), atol=1e-3, rtol=1e-3, err_msg=key)
    client.close()
