"""Writes AOTInductor packages, and the outputs of eager PyTorch, to the folder on the command line."""

import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from export_package import export_package  # noqa: E402


class Net(torch.nn.Module):
    """A convolution, a normalisation with non-trivial statistics, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 4, 3)
        self.normalisation = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 2)
        with torch.no_grad():
            self.normalisation.running_mean.uniform_(-1, 1)
            self.normalisation.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.normalisation(self.convolution(x)))
        return self.linear(x.mean((2, 3)))


torch.manual_seed(1)
folder = Path(sys.argv[1])
net = Net().eval()
export_package(net, (torch.randn(2, 1, 8, 8),), folder / "Net.pt2", max_batch_size=4)
export_package(net, (torch.randn(1, 1, 8, 8),), folder / "Sizes.pt2", max_batch_size=4, batch_sizes=(1, 4))
with torch.no_grad():
    x = torch.randn(4, 1, 8, 8)
    answers = {"x": x.flatten().tolist(), "y": net(x).flatten().tolist()}
(folder / "Net.json").write_text(json.dumps(answers))
