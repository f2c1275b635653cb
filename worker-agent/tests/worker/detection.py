"""Writes programs with torchvision's operators, and what torchvision itself answers, to the folder on the command line."""

import json
import sys
from pathlib import Path

import torch
import torchvision


class Nms(torch.nn.Module):
    """Answers the number of boxes that are kept, then their places. The options are the number of boxes and the threshold."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, options: torch.Tensor) -> torch.Tensor:
        count = int(options[0])
        kept = torch.ops.torchvision.nms(boxes[:count], scores[:count], float(options[1]))
        answer = torch.zeros(boxes.size(0) + 1)
        answer[0] = kept.size(0)
        answer[1 : 1 + kept.size(0)] = kept.to(torch.float32)
        return answer


class RoiAlign(torch.nn.Module):
    """The options are the scale, the samples, whether corners are aligned, and whether it computes in BF16."""

    def forward(self, x: torch.Tensor, rois: torch.Tensor, options: torch.Tensor) -> torch.Tensor:
        kind = torch.bfloat16 if float(options[3]) > 0 else torch.float32
        scale, samples, aligned = float(options[0]), int(options[1]), bool(options[2] > 0)
        return torch.ops.torchvision.roi_align(x.to(kind), rois.to(kind), scale, 3, 2, samples, aligned).to(torch.float32)


torch.manual_seed(3)
folder = Path(sys.argv[1])
for module in [Nms, RoiAlign]:
    torch.jit.script(module().eval()).save(f"{folder}/{module.__name__}.pt")

nms = []
for number in range(12):
    # Whole numbers, so that some boxes are equal, some have no area, and some scores are equal.
    count = 0 if number == 0 else 40
    corner = torch.randint(0, 12, (40, 2)).float()
    boxes = torch.cat([corner, corner + torch.randint(0, 7, (40, 2)).float()], 1)
    scores = torch.randint(0, 10, (40,)).float() / 10
    # FP32 has all of them exactly, as the program gets them.
    threshold = [0.5, 0.0, 0.25, 1.0][number % 4]
    kept = torchvision.ops.nms(boxes[:count], scores[:count], threshold)
    nms.append({"boxes": boxes.flatten().tolist(), "scores": scores.tolist(), "options": [count, threshold], "kept": kept.tolist()})

align = []
for number in range(24):
    # Whole numbers and halves, which BF16 has exactly. Some regions have no area, some are in part outside.
    x = torch.randint(-8, 8, (2, 3, 9, 11)).float()
    corner = torch.randint(-4, 22, (6, 2)).float() / 2
    size = torch.randint(0, 14, (6, 2)).float() / 2
    rois = torch.cat([torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0], [1.0]]), corner, corner + size], 1)
    scale, samples, aligned, bf16 = [1.0, 0.5][number % 2], [2, -1, 1][number % 3], float(number % 4 < 2), float(number >= 12)
    answer = torchvision.ops.roi_align(x, rois, (3, 2), scale, samples, bool(aligned))
    align.append({"x": x.flatten().tolist(), "rois": rois.flatten().tolist(), "options": [scale, samples, aligned, bf16], "answer": answer.flatten().tolist()})
(folder / "cases.json").write_text(json.dumps({"nms": nms, "align": align}))
