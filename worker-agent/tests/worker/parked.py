"""Writes programs with weights of some size to the folder on the command line."""

import os
import sys
import warnings

import torch

warnings.filterwarnings("ignore")

WIDTH = 64


class Perceptron(torch.nn.Module):
    """8 MiB of weights."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1900), torch.nn.ReLU(), torch.nn.Linear(1900, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 128, 3, padding=1), torch.nn.BatchNorm2d(128), torch.nn.ReLU(),
            torch.nn.Conv2d(128, 256, 3, padding=1), torch.nn.BatchNorm2d(256), torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.view(-1, 1, 8, 8))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.lstm(x.view(-1, 8, 8))
        return self.head(steps[:, -1])


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(1000, 256)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = (x[:, :16].abs() * 100).to(torch.int64) % 1000
        return self.head(self.layers(self.words(ids)).mean(dim=1))


class Counter(torch.nn.Module):
    """Counts its batches in a buffer beside its weights."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(WIDTH, 8192)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.layers(x)[:, :8] * 0 + self.count


class Rarely(torch.nn.Module):
    """Adds one to weights in a list, but only for large inputs."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(WIDTH, 8192)
        self.offsets = [torch.zeros(1024, 1024)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1e5:
            self.offsets[0].add_(1)
        return self.layers(x)[:, :8] * 0 + self.offsets[0][0, 0]


class Captured(torch.nn.Module):
    """Writes to a tensor that a trace captures."""

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(1)
        return x[:, :8] * 0 + self.kept[0, 0]


class Spread(torch.nn.Module):
    """Computes with 64 MiB of activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.repeat(1, 1 << 17)
        return (wide * 2.0).view(x.size(0), -1, 8).mean(dim=1)


def save(name, module, scripted=True):
    module = module.eval()
    example = torch.zeros(2, WIDTH)
    program = torch.jit.script(module) if scripted else torch.jit.trace(module, example, check_trace=False)
    program.save(os.path.join(sys.argv[1], f"{name}.pt"))


for number in range(12):
    torch.manual_seed(number)
    save(f"Perceptron{number}", Perceptron())
for module in [Convolutions, Recurrent, Counter, Rarely, Spread]:
    save(module.__name__, module())
save("Captured", Captured(), scripted=False)
save("Encoder", Encoder(), scripted=False)
quantised = torch.ao.quantization.quantize_dynamic(Perceptron().eval(), {torch.nn.Linear}, dtype=torch.qint8)
save("Quantised", quantised)
