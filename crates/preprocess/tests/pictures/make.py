"""Makes the pictures of the tests, and writes what Pillow and torchvision make of them: `python make.py`.

Needs Pillow, numpy, torch and torchvision. The pictures are drawn from formulas, so that they are nobody's photographs.
"""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

FOLDER = Path(__file__).parent

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
THOUSANDTHS = {"rescale": 0.00392156862745098, "mean": MEAN, "std": STD}

# Each is a declaration of the registration, without its kind.
DECLARATIONS = {
    "bilinear": {"resize": {"shortest": 64}, "crop": [56, 56], **THOUSANDTHS},
    "bicubic": {"resize": {"shortest": 64}, "filter": "bicubic", "crop": [56, 51], "layout": "NHWC", **THOUSANDTHS},
    "exact": {"resize": {"exact": [40, 72]}, "filter": "bicubic", "channels": "BGR", "rescale": 0.00392156862745098},
    "larger": {"resize": {"shortest": 300}, "filter": "bicubic", "crop": [33, 47], "crop_rounding": "floor", "exif": True},
}


def scene(width: int, height: int, seed: int) -> Image.Image:
    """Returns a picture with edges, ramps and noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).normal(0, 10, (height, width, 3))
    waves = [127 + 120 * np.sin(x / 17 + y / 29), 127 + 120 * np.sin(x / 7 - y / 13), (x * 3 + y * 5) % 256]
    return Image.fromarray((np.stack(waves, -1) + noise).clip(0, 255).astype("uint8"))


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def pictures() -> dict[str, bytes]:
    """Returns the files by name."""
    alpha = scene(90, 70, 8).convert("RGBA")
    alpha.putalpha(scene(90, 70, 9).convert("L"))
    see_through = scene(60, 80, 10).quantize(17)
    files = {
        "420.jpg": saved(scene(150, 101, 1), "JPEG"),
        "422.jpg": saved(scene(101, 150, 2), "JPEG", subsampling=1),
        "444.jpg": saved(scene(77, 77, 3), "JPEG", subsampling=0, quality=95),
        "progressive.jpg": saved(scene(133, 91, 4), "JPEG", progressive=True),
        "grey.jpg": saved(scene(90, 60, 5).convert("L"), "JPEG"),
        "restarts.jpg": saved(scene(95, 63, 6), "JPEG", restart_marker_blocks=3),
        "tall.jpg": saved(scene(70, 300, 17), "JPEG"),
        "wide.jpg": saved(scene(400, 9, 7), "JPEG"),
        "rgb.png": saved(scene(60, 50, 7), "PNG"),
        "alpha.png": saved(alpha, "PNG"),
        "grey.png": saved(scene(60, 50, 11).convert("L"), "PNG"),
        "grey-alpha.png": saved(alpha.convert("LA"), "PNG"),
        "black-white.png": saved(scene(61, 50, 12).convert("1"), "PNG"),
        "palette.png": saved(scene(60, 80, 10).quantize(200), "PNG"),
        "palette-alpha.png": saved(see_through, "PNG", transparency=3),
        "key.png": saved(scene(30, 30, 13), "PNG", transparency=(10, 20, 30)),
        "one.png": saved(Image.new("RGB", (1, 1), (1, 200, 77)), "PNG"),
        "lossy.webp": saved(scene(120, 90, 14), "WEBP", quality=80),
        "odd.webp": saved(scene(61, 93, 15), "WEBP", quality=30),
        "lossless.webp": saved(scene(64, 48, 16), "WEBP", lossless=True),
        "lossy-alpha.webp": saved(alpha, "WEBP", quality=70),
        "lossless-alpha.webp": saved(alpha, "WEBP", lossless=True),
        "turned.png": saved(scene(40, 31, 20), "PNG", exif=turned(6)),
        "turned.webp": saved(scene(41, 30, 21), "WEBP", exif=turned(8)),
        "bench.jpg": saved(smooth(512, 512), "JPEG", quality=85),
        "bench.png": saved(smooth(256, 256), "PNG"),
        "bench.webp": saved(smooth(512, 512), "WEBP"),
    }
    for orientation in range(1, 9):
        files[f"turned-{orientation}.jpg"] = saved(scene(50, 37, 30 + orientation), "JPEG", exif=turned(orientation))
    return files


def smooth(width: int, height: int) -> Image.Image:
    """Returns a picture as smooth as a photograph: its file is about as large as that of one."""
    small = scene(width // 4, height // 4, 40).resize((width, height), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(41).normal(0, 3, (height, width, 3))
    return Image.fromarray((np.asarray(small) + noise).clip(0, 255).astype("uint8"))


def refused() -> dict[str, bytes]:
    """Returns the files that are not taken, by name."""
    sixteen = Image.fromarray(np.arange(600, dtype="uint16").reshape(20, 30) * 100)
    frames = [scene(20, 20, seed) for seed in (50, 51)]
    whole = saved(scene(90, 60, 52), "JPEG")
    return {
        "cmyk.jpg": saved(scene(40, 30, 53).convert("CMYK"), "JPEG"),
        "sixteen.png": saved(sixteen, "PNG"),
        "animated.png": saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "animated.webp": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "truncated.jpg": whole[: len(whole) // 2],
        "picture.gif": saved(scene(10, 10, 54), "GIF"),
    }


def prepared(file: bytes, declared: dict) -> torch.Tensor:
    """Returns what Pillow and torchvision make of a picture."""
    picture = Image.open(io.BytesIO(file))
    if declared.get("exif"):
        picture = ImageOps.exif_transpose(picture)
    picture = picture.convert("RGB")
    bicubic = declared.get("filter") == "bicubic"
    resize = declared["resize"]
    if "shortest" in resize:
        size = resize["shortest"]
        mode = InterpolationMode.BICUBIC if bicubic else InterpolationMode.BILINEAR
        picture = v2.Resize(size, interpolation=mode)(picture)
    else:
        height, width = resize["exact"]
        picture = picture.resize((width, height), Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR)
    if crop := declared.get("crop"):
        if declared.get("crop_rounding") == "floor":
            left, top = (picture.width - crop[1]) // 2, (picture.height - crop[0]) // 2
            picture = picture.crop((left, top, left + crop[1], top + crop[0]))
        else:
            picture = v2.CenterCrop(crop)(picture)
    if declared.get("channels") == "BGR":
        picture = Image.merge("RGB", picture.split()[::-1])
    tensor = v2.functional.pil_to_tensor(picture)
    if "rescale" in declared:
        tensor = tensor.to(torch.float32) / 255
    if "mean" in declared:
        tensor = v2.functional.normalize(tensor, declared["mean"], declared["std"])
    if declared.get("layout") == "NHWC":
        tensor = tensor.permute(1, 2, 0)
    return tensor.contiguous()


def expected(files: dict[str, bytes]) -> dict[str, dict[str, str]]:
    """Returns the SHA-256 of the tensor of each declaration and picture."""
    digest = lambda file, declared: hashlib.sha256(prepared(file, declared).numpy().tobytes()).hexdigest()  # noqa: E731
    return {
        name: {picture: digest(file, declared) for picture, file in files.items()}
        for name, declared in DECLARATIONS.items()
    }


def committed(names: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the files of these names as they are in the folder."""
    return {name: (FOLDER / name).read_bytes() for name in names}


if __name__ == "__main__":
    for name, file in (pictures() | refused()).items():
        (FOLDER / name).write_bytes(file)
    rows = {"declarations": DECLARATIONS, "sha256": expected(pictures())}
    (FOLDER / "expected.json").write_text(json.dumps(rows, indent=1) + "\n")
