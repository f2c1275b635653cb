"""What people have, as modules with example inputs: models of timm and torchvision, folders of Hugging Face, and functions."""

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from packhorse import _pictures, _texts
from packhorse._folder import ExportError

# Files of a Hugging Face folder that say how an input is made; they are kept beside the artifact.
PREPROCESSING = ("preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# The tokens of an example, and those of a decoder's, and the samples of a wave.
TOKENS, DECODER_TOKENS, SAMPLES = 128, 4, 16_000
# The length that a tokenizer has as its largest if it knows none is above this.
NO_LENGTH = 1 << 20


@dataclass
class Source:
    """A module, what it is called with, and the options of `export` that follow from where it is from."""

    model: nn.Module
    example_inputs: Any
    options: dict[str, Any] = field(default_factory=dict)


def open_source(source: str, *, weights: str = "pretrained", shape: Sequence[int] | None = None, encoder: bool = False) -> Source:
    """Loads `timm:NAME`, `torchvision:NAME`, a folder of Hugging Face or `FILE.py:FUNCTION`.

    `weights` are those that the source publishes, `random` ones or a file's, and `shape` is that of an image: both are for timm and torchvision.
    `encoder` takes the encoder of an encoder and decoder of Hugging Face.
    """
    kind, _, name = source.partition(":")
    try:
        if kind in ("timm", "torchvision"):
            return {"timm": of_timm, "torchvision": of_torchvision}[kind](name, weights, shape)
        if Path(source).is_dir():
            return of_huggingface(Path(source), encoder)
        if ".py:" in source:
            return of_function(*source.rsplit(":", 1))
    except ExportError:
        raise
    except Exception as e:
        more = "; weights come from a file by --weights FILE, and --weights random needs none" if kind in ("timm", "torchvision") else ""
        raise ExportError(f"cannot load {source}: {type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}{more}") from e
    raise ExportError(
        f"SOURCE: {source!r} is neither timm:NAME, torchvision:NAME, FILE.py:FUNCTION nor a folder; "
        "a model of the Hugging Face Hub is downloaded first: hf download OWNER/NAME --local-dir FOLDER"
    )


def of_timm(name: str, weights: str, shape: Sequence[int] | None) -> Source:
    """A model of timm, with the classes that it knows and its declaration of the preprocessing."""
    timm = imported("timm")
    model = timm.create_model(name, pretrained=weights == "pretrained")
    load(model, weights)
    config = timm.data.resolve_model_data_config(model)
    options: dict[str, Any] = {"files": {"pretrained_cfg.json": (json.dumps(model.pretrained_cfg | config, default=str, indent=2) + "\n").encode()}}
    subset = timm.data.infer_imagenet_subset(model)
    if subset and weights != "random":
        info = timm.data.ImageNetInfo(subset)
        options["labels"] = [info.index_to_description(i) for i in range(info.num_classes())]
    options |= of_pictures(model, _pictures.of_timm(config))
    return Source(model, torch.randn(2, *(shape or config["input_size"])), options)


def of_torchvision(name: str, weights: str, shape: Sequence[int] | None) -> Source:
    """A model of torchvision, with its classes."""
    models = imported("torchvision").models
    known = models.get_model_weights(name).DEFAULT
    if shape is None:
        preprocessing = known.transforms()
        size = _pictures.pair(getattr(preprocessing, "crop_size", None) or getattr(preprocessing, "resize_size", None))
        if size is None:
            raise ExportError(f"torchvision:{name} takes lists or pairs of images, which are no tensors with rows: export another model")
        shape = [3, 16, *size] if name in models.list_models(models.video) else [3, *size]
    # Without weights for the whole, those of a backbone would be fetched.
    has_backbone = "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters
    model = models.get_model(name, weights=known if weights == "pretrained" else None, **{"weights_backbone": None} if has_backbone else {})
    load(model, weights)
    options = {"labels": known.meta["categories"]} if weights != "random" and "categories" in known.meta else {}
    options |= of_pictures(model, _pictures.of_torchvision(known.transforms()))
    return Source(model, torch.randn(2, *shape), options)


def of_pictures(model: nn.Module, declared: dict | None) -> dict[str, Any]:
    """The options of a classifier of pictures, whose first argument they are."""
    if declared is None:
        return {}
    return {"preprocess": {next(iter(inspect.signature(model.forward).parameters)): declared}, "classifies": True}


def of_function(file: str, name: str) -> Source:
    """What a function of a file returns: a module and its example inputs, and options of `export` if any."""
    path = Path(file)
    # A name that no module has: a file may be called like one of Python.
    own = f"packhorse_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(own, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ExportError(f"SOURCE: there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))
    sys.modules[own] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ExportError(f"SOURCE: {file} has no function {name}")
    made = getattr(module, name)()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise ExportError(f"SOURCE: {name} of {file} must return a module and its example inputs, and may return a dict of options of packhorse.export")
    return Source(*made)


def of_huggingface(folder: Path, encoder: bool) -> Source:
    """A model that `save_pretrained` wrote, or a sentence encoder of sentence-transformers."""
    transformers = imported("transformers")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    of_sentences = (folder / "modules.json").is_file()
    (architecture,) = ["AutoModel"] if of_sentences else config.architectures or ["AutoModel"]
    if not hasattr(transformers, architecture):
        raise ExportError(f"{folder}/config.json: transformers {transformers.__version__} has no {architecture}: write a function (FILE.py:FUNCTION)")
    model = getattr(transformers, architecture).from_pretrained(folder, local_files_only=True)
    if encoder:
        model = model.get_encoder()
    tokenizer = read_json(folder / "tokenizer_config.json")
    if (folder / _texts.FILE).is_file() and "model_input_names" not in tokenizer and (names := _texts.arguments(folder)):
        tokenizer["model_input_names"] = names
    inputs, options = example_of(model, config, tokenizer, read_json(folder / "preprocessor_config.json"))
    if of_sentences:
        model = SentenceEncoder.of(folder, model)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        if length := read_json(folder / "sentence_bert_config.json").get("max_seq_length"):
            most = min(length, (options["dynamic"]["input_ids"][1] or (1, length))[1])
            options["dynamic"] = {name: {1: (1, most)} for name in inputs}
        options["pad"] = {name: options["pad"][name] for name in inputs}
    options["files"] = {name: (folder / name).read_bytes() for name in PREPROCESSING if (folder / name).is_file()}
    labels = [label for _, label in sorted((config.id2label or {}).items())]
    if architecture.endswith("Classification") and labels != [f"LABEL_{i}" for i in range(len(labels))]:
        options["labels"] = labels
    length = options.get("dynamic", {}).get("input_ids", {}).get(1)
    text, problem = _texts.of_huggingface(folder, inputs, length[1] if length else None, of_sentences)
    if text:
        options |= {"preprocess": {_texts.INPUT: text}, "classifies": architecture.endswith("ForSequenceClassification")}
        if of_sentences:
            options["embeds"] = {"normalize": model.normalises}
    elif problem:
        options["notes"] = [f"no preprocess is declared: {problem}"]
    declared = _pictures.of_huggingface(read_json(folder / "preprocessor_config.json"))
    if declared and "pixel_values" in inputs:
        options |= {"preprocess": {"pixel_values": declared}, "classifies": architecture.endswith("ForImageClassification")}
    return Source(model, inputs, options)


def example_of(model: nn.Module, config: Any, tokenizer: dict, preprocessor: dict) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inputs of two rows by the names that a model of transformers takes, and the options that they need."""
    takes = inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    options: dict[str, Any] = {}
    if "input_ids" in takes:
        text = config.get_text_config()
        length = longest(model, text, tokenizer)
        inputs["input_ids"] = tokens(text, min(TOKENS, length or TOKENS))
        mask = torch.ones_like(inputs["input_ids"])
        mask[1, mask.shape[1] * 2 // 3 :] = 0
        others = tokenizer.get("model_input_names", ["attention_mask"])
        more = {"attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
        inputs |= {name: tensor for name, tensor in more.items() if name in others and name in takes}
        options["dynamic"] = {name: {1: (1, length) if length else None} for name in inputs}
        # How long texts are, no folder says.
        options["usual_sizes"] = False
        if "attention_mask" in inputs:
            options["pad"] = dict.fromkeys(inputs, 0) | {"input_ids": text.pad_token_id or 0}
    if "pixel_values" in takes:
        vision = getattr(config, "vision_config", config)
        size = preprocessor.get("crop_size") or getattr(vision, "image_size", None) or preprocessor.get("size")
        frames = [vision.num_frames] if hasattr(vision, "num_frames") else []
        inputs["pixel_values"] = torch.randn(2, *frames, getattr(vision, "num_channels", 3), *size_of(size))
    if "input_values" in takes:
        is_spectrum = hasattr(config, "num_mel_bins")
        inputs["input_values"] = torch.randn(2, config.max_length, config.num_mel_bins) if is_spectrum else torch.randn(2, SAMPLES)
        options["dynamic"] = {} if is_spectrum else {"input_values": [1]}
    if "input_features" in takes and hasattr(config, "max_source_positions"):
        inputs["input_features"] = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    if not inputs:
        raise ExportError(f"{type(model).__name__} takes {', '.join(takes)}, of which none is known: write a function (FILE.py:FUNCTION)")
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = tokens(config.get_text_config(), DECODER_TOKENS)
        options.pop("pad", None)
    return inputs, options


def tokens(config: Any, length: int) -> Tensor:
    """Two rows of tokens that have no meaning of their own."""
    special = {value for name, value in config.to_dict().items() if name.endswith("_token_id")}
    usual = torch.tensor([token for token in range(config.vocab_size // 2, config.vocab_size) if token not in special])
    return usual[torch.randint(len(usual), (2, length))]


def longest(model: nn.Module, config: Any, tokenizer: dict) -> int | None:
    """The most tokens of a row: the tokenizer's, the configuration's, and what fits into learned positions; None if nothing says it."""
    known = [tokenizer.get("model_max_length") or NO_LENGTH, getattr(config, "max_position_embeddings", None) or NO_LENGTH]
    # XLNet says -1 for none.
    known = [length if length > 0 else NO_LENGTH for length in known]
    for name, module in model.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            known.append(module.num_embeddings - module.padding_idx - 1)
    return int(min(known)) if min(known) < NO_LENGTH else None


def size_of(size: Any) -> list[int]:
    """The height and the width that a folder says."""
    found = _pictures.pair(size)
    if found is None:
        raise ExportError("the folder does not say the size of images (image_size): write a function (FILE.py:FUNCTION)")
    return found


class SentenceEncoder(nn.Module):
    """A transformer with the pooling and the normalisation that a folder of sentence-transformers declares."""

    def __init__(self, transformer: nn.Module, pooling: str, normalises: bool):
        super().__init__()
        self.transformer, self.pooling, self.normalises = transformer, pooling, normalises

    @classmethod
    def of(cls, folder: Path, transformer: nn.Module) -> "SentenceEncoder":
        modules = json.loads((folder / "modules.json").read_text())
        types = [module["type"].rsplit(".", 1)[-1] for module in modules]
        if types not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise ExportError(f"{folder}/modules.json: {', '.join(types)}: expected Transformer, Pooling and at most Normalize: write a function (FILE.py:FUNCTION)")
        declared = read_json(folder / modules[1]["path"] / "config.json")
        modes = [mode.removeprefix("pooling_mode_") for mode, is_on in declared.items() if mode.startswith("pooling_mode_") and is_on]
        if modes not in (["mean_tokens"], ["cls_token"]):
            raise ExportError(f"{folder}/{modules[1]['path']}: the pooling is {', '.join(modes)}: expected mean_tokens or cls_token")
        return cls(transformer, modes[0], "Normalize" in types)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        found = self.transformer(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]
        if self.pooling == "cls_token":
            pooled = found[:, 0]
        else:
            mask = attention_mask.unsqueeze(-1).to(found.dtype)
            pooled = (found * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return {"sentence_embedding": nn.functional.normalize(pooled, dim=1) if self.normalises else pooled}


def imported(name: str) -> Any:
    """A library, which the package does not require."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ExportError(f"SOURCE: {name} is not installed: pip install {name} ({e})") from e


def load(model: nn.Module, weights: str) -> None:
    """Loads the weights of a file, if it is one."""
    if weights in ("pretrained", "random"):
        return
    if weights.endswith(".safetensors"):
        model.load_state_dict(imported("safetensors.torch").load_file(weights))
    else:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))


def read_json(file: Path) -> dict:
    """What a file declares; nothing if it is not there."""
    return json.loads(file.read_text()) if file.is_file() else {}
