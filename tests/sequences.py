"""Small models of sequences, whose time depends on the length of their inputs: as TorchScript files, each with its registration."""

from pathlib import Path

import models
import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """A layer of a transformer: attention of 4 heads, and two products."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.before = nn.LayerNorm(width)
        self.after = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.projections(x).view(rows, length, 3, 4, self.width // 4).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=mask)
        x = self.before(x + self.output(heads.transpose(1, 2).reshape(rows, length, self.width)))
        return self.after(x + self.narrow(functional.gelu(self.wide(x))))


class Distil(nn.Module):
    """As DistilBERT is built, smaller: embeddings of tokens, layers of attention, and a classifier on the first token."""

    def __init__(self, width: int = 256, layers: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(1000, width)
        self.layers = nn.ModuleList([Attention(width) for _ in range(layers)])
        self.classifier = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = (attention_mask > 0).unsqueeze(1).unsqueeze(1)
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(x[:, 0])


class Encoder(nn.Module):
    """As Whisper's encoder is built, smaller: convolutions over the time of a spectrum, the second by halves, and layers of attention."""

    def __init__(self, width: int = 64, layers: int = 2):
        super().__init__()
        self.first = nn.Conv1d(80, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList([Attention(width) for _ in range(layers)])

    def forward(self, mel: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(mel)))).transpose(1, 2)
        mask = torch.ones([1, 1, 1, x.shape[1]], dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, mask)
        return x.mean(1)


def distil(folder: Path, name: str, typical: int | None = None, **more) -> models.Model:
    """`input_ids`, `attention_mask` of any length to `logits`."""
    torch.manual_seed(7)
    said = {} if typical is None else {"typical_shape": [-1, typical]}
    inputs = [models.tensor(n, "INT64", [-1, -1], max_shape=[-1, 512], **said) for n in ("input_ids", "attention_mask")]
    outputs = [models.tensor("logits", "FP32", [-1, 2])]
    return models.make(folder, Distil(), models.registration(name, inputs, outputs, max_batch_size=2, **more))


def encoder(folder: Path, name: str, typical: int | None = None, **more) -> models.Model:
    """`mel` of any length to `states`."""
    torch.manual_seed(7)
    said = {} if typical is None else {"typical_shape": [-1, 80, typical]}
    inputs = [models.tensor("mel", "FP32", [-1, 80, -1], max_shape=[-1, -1, 3000], **said)]
    outputs = [models.tensor("states", "FP32", [-1, 64])]
    return models.make(folder, Encoder(), models.registration(name, inputs, outputs, max_batch_size=2, **more))
