"""Exports many architectures with random weights, and prints the table of docs/exports.md.

    PYTHONPATH=python .venv/bin/python examples/export_matrix.py [--compile] [PART …]

Models of torchvision and timm have their published sizes, those of transformers two or three small layers. With PARTs of names only these are
exported. Each is written, loaded again and compared by `packhorse.export`; rows of timm say that it is missing if it is not installed.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers
from packhorse import ExportError, export
from packhorse._sources import Source, of_huggingface, open_source

TORCHVISION = "resnet18 resnet50 resnext50_32x4d densenet121 efficientnet_b0 mobilenet_v2 mobilenet_v3_large shufflenet_v2_x1_0 squeezenet1_1 mnasnet1_0"
TORCHVISION += " regnet_y_400mf convnext_tiny vit_b_32 swin_t googlenet lraspp_mobilenet_v3_large r3d_18 fasterrcnn_resnet50_fpn"
TIMM = "vit_tiny_patch16_224 convnext_atto efficientnet_lite0 mobilenetv4_conv_small swin_tiny_patch4_window7_224 mixer_s32_224 levit_128s"
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
TEXT = SMALL | {"vocab_size": 1000}
IMAGE = SMALL | {"image_size": 64, "patch_size": 16}
WAVE = SMALL | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
# The class of a model, its configuration and the outputs to keep.
TRANSFORMERS: dict[str, tuple[dict, list[str] | None]] = {
    "BertForSequenceClassification": (TEXT, None),
    "BertModel": (TEXT, None),
    "RobertaForSequenceClassification": (TEXT | {"max_position_embeddings": 130}, None),
    "XLMRobertaModel": (TEXT | {"max_position_embeddings": 130}, None),
    "DistilBertForTokenClassification": ({"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128, "vocab_size": 1000}, None),
    "ElectraForSequenceClassification": (TEXT, None),
    "AlbertModel": (TEXT | {"embedding_size": 32}, None),
    "MPNetModel": (TEXT | {"max_position_embeddings": 130}, None),
    "DebertaV2ForSequenceClassification": (TEXT, None),
    "ModernBertForSequenceClassification": (TEXT | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 1}, None),
    "T5EncoderModel": ({"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2, "vocab_size": 1000}, None),
    "GPT2LMHeadModel": ({"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 1}, None),
    "BartForSequenceClassification": ({"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000}, None),
    "ViTForImageClassification": (IMAGE, None),
    "Dinov2Model": (IMAGE, None),
    "ConvNextForImageClassification": ({"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "image_size": 64}, None),
    "SegformerForSemanticSegmentation": ({"depths": [1, 1, 1, 1], "image_size": 64}, None),
    "CLIPModel": ({"text_config": TEXT | {"eos_token_id": 2}, "vision_config": IMAGE}, ["text_embeds", "image_embeds"]),
    "CLIPModel, all outputs": ({"text_config": TEXT | {"eos_token_id": 2}, "vision_config": IMAGE}, None),
    "Wav2Vec2ForCTC": (WAVE | {"vocab_size": 30}, None),
    "HubertForSequenceClassification": (WAVE | {"vocab_size": 30}, None),
    "ASTForAudioClassification": (SMALL, None),
    "WhisperForAudioClassification": ({"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}, None),
}


def of_transformers(name: str, configuration: dict) -> Source:
    """A folder as `save_pretrained` writes it, opened."""
    architecture = getattr(transformers, name.split(",")[0])
    with tempfile.TemporaryDirectory() as folder:
        architecture(architecture.config_class(**configuration)).save_pretrained(folder)
        return of_huggingface(Path(folder), encoder=False)


def architectures() -> Iterator[tuple[str, str, Callable[[], Source], dict]]:
    """Library, name, what makes the model, and options of `export`."""
    for library, names in (("torchvision", TORCHVISION), ("timm", TIMM)):
        for name in names.split():
            yield library, name, lambda source=f"{library}:{name}": open_source(source, weights="random"), {}
    for name, (configuration, outputs) in TRANSFORMERS.items():
        yield "transformers", name, lambda name=name, given=configuration: of_transformers(name, given), {"outputs": outputs}


def sizes(spec: dict) -> str:
    return f"`{spec['name']}` {spec['datatype']} {spec['shape']}".replace("-1", "−1")


def row(library: str, name: str, make: Callable[[], Source], options: dict, folder: Path) -> str:
    """A line of the table."""
    before = sum(os.times()[:4])
    try:
        source = make()
        before = sum(os.times()[:4])
        made = export(source.model, source.example_inputs, folder / "model", max_batch_size=4, overwrite=True, **source.options | options)
    except ExportError as e:
        return f"| {name} | {library} | refused: {str(e).splitlines()[0].split(';')[0]} | | |"
    seconds = sum(os.times()[:4]) - before
    inputs, outputs = (", ".join(map(sizes, made.registration[side])) for side in ("inputs", "outputs"))
    return f"| {name} | {library} | {inputs} → {outputs} | {seconds:.1f} | {made.difference:.1g} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="export only architectures whose name or library has one of these")
    parser.add_argument("--compile", action="store_true", help="make AOTInductor packages")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    # So that seconds do not depend on the machine's other work.
    torch.set_num_threads(1)
    print("| architecture | from | inputs → outputs | CPU seconds | largest difference |\n|---|---|---|--:|--:|")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for library, name, make, options in architectures():
            if not given.parts or any(part in f"{library}:{name}" for part in given.parts):
                print(row(library, name, make, options | {"compile": given.compile}, Path(temporary)), flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s")
