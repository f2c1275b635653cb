"""How a picture becomes an input, as timm, torchvision and Hugging Face declare it, for the registration.

A declaration that needs more than a resize, a crop from the middle and a normalisation is none: clients send tensors then.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Pillow's numbers of the filters that the gateway has.
FILTERS = {2: "bilinear", 3: "bicubic"}
# The processors of Hugging Face that resize, crop from the middle, rescale and normalise, in this order, and do nothing else.
PLAIN_PROCESSORS = ("ViT", "DeiT", "CLIP", "Bit", "MobileNetV1", "MobileNetV2")
# The size from which ConvNeXt's processor resizes without a crop.
CONVNEXT_WHOLE = 384
# The classes that a request of a picture is answered, if there are as many.
TOP_K = 5


def of_torchvision(transforms: Any) -> dict | None:
    """What the weights of a classifier of torchvision declare."""
    crop = pair(getattr(transforms, "crop_size", None))
    if type(transforms).__name__ != "ImageClassification" or len(transforms.resize_size) != 1 or crop is None:
        return None
    return declaration(
        {"shortest": transforms.resize_size[0]},
        str(transforms.interpolation.value),
        crop,
        "half-even",
        1 / 255,
        transforms.mean,
        transforms.std,
    )


def of_timm(config: Mapping) -> dict | None:
    """What a model of timm declares."""
    size = list(config["input_size"][1:])
    modes = {"center": lambda scaled: {"shortest": scaled[0]}, "squash": lambda scaled: {"exact": scaled}}
    if config["input_size"][0] != 3 or size[0] != size[1] or config.get("crop_mode", "center") not in modes:
        return None
    scaled = [math.floor(side / config["crop_pct"]) for side in size]
    resize = modes[config.get("crop_mode", "center")](scaled)
    return declaration(resize, config["interpolation"], size, "half-even", 1 / 255, config["mean"], config["std"])


def of_huggingface(declared: Mapping) -> dict | None:
    """What the `preprocessor_config.json` of a folder of Hugging Face declares."""
    kind = str(declared.get("image_processor_type") or declared.get("feature_extractor_type"))
    kind = kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    size = declared.get("size")
    size = {"shortest_edge": size} if isinstance(size, int) and declared.get("do_center_crop") else size
    whole_size = pair(size)
    crop = pair(declared.get("crop_size")) if declared.get("do_center_crop") else None
    if not declared.get("do_resize", True) or whole_size is None or (declared.get("do_center_crop") and crop is None):
        return None
    if kind == "ConvNext":
        side = whole_size[0]
        whole = side >= CONVNEXT_WHOLE
        resize = {"exact": [side, side]} if whole else {"shortest": int(side / declared.get("crop_pct", 224 / 256))}
        crop = None if whole else [side, side]
    elif kind not in PLAIN_PROCESSORS:
        return None
    elif isinstance(size, Mapping) and "shortest_edge" in size:
        resize = {"shortest": size["shortest_edge"]}
    else:
        resize = {"exact": whole_size}
    rescale = declared.get("rescale_factor", 1 / 255) if declared.get("do_rescale", True) else 1.0
    mean, std = (declared.get(f"image_{name}") if declared.get("do_normalize", True) else [value] * 3 for name, value in (("mean", 0.0), ("std", 1.0)))
    filter = FILTERS.get(declared.get("resample", 2))
    if filter is None or mean is None or std is None:
        return None
    return declaration(resize, filter, crop, "floor", rescale, mean, std)


def declaration(
    resize: dict,
    filter: str,
    crop: list[int] | None,
    crop_rounding: str,
    rescale: float,
    mean: Sequence[float],
    std: Sequence[float],
) -> dict | None:
    """The declaration, if the gateway has the filter, and the whole picture has a size."""
    if filter not in FILTERS.values() or (crop is None and "exact" not in resize) or not len(mean) == len(std) == 3:
        return None
    cropped = {"crop": crop, "crop_rounding": crop_rounding} if crop else {}
    return {"kind": "image", "resize": resize, "filter": filter, **cropped, "rescale": rescale, "mean": list(mean), "std": list(std)}


def pair(size: Any) -> list[int] | None:
    """Height and width, however they are written: one number stands for both."""
    match size:
        case {"height": height, "width": width}:
            return [height, width]
        case {"shortest_edge": edge}:
            return [edge, edge]
        case int():
            return [size, size]
        case [side]:
            return [side, side]
        case [height, width]:
            return [height, width]
    return None


def misfit(declared: Mapping, shape: Sequence[int], datatype: str) -> str | None:
    """Why a declaration does not make a row of an input of this shape; none if it does."""
    size = declared.get("crop") or declared.get("resize", {}).get("exact")
    made = [3, *(size or [])] if declared.get("layout", "NCHW") == "NCHW" else [*(size or []), 3]
    if list(shape[-3:]) != made or datatype not in ("FP32", "FP16", "UINT8"):
        return f"it makes rows of {made}, and the input takes {datatype} {list(shape)}"
    return None


def classes_of(outputs: Sequence[dict], labels: Sequence[str]) -> dict[str, dict]:
    """The declaration of the only output as the logits of classes; nothing if it has no rows of numbers, or not one for each label."""
    if len(outputs) != 1:
        return {}
    (output,) = outputs
    count = output["shape"][-1]
    if len(output["shape"]) != 2 or count < 1 or output["datatype"] not in ("FP32", "FP16", "FP64", "BF16") or len(labels) not in (0, count):
        return {}
    named = {"labels": [str(label) for label in labels]} if labels else {}
    # The softmax of one number is 1.
    softmax = {"softmax": True} if count > 1 else {}
    return {output["name"]: {**softmax, "top_k": min(TOP_K, count), **named}}
