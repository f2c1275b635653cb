"""Asks EfficientNet-Lite0 what a photograph shows.

    python examples/efficientnet-lite0/classify.py [--url 127.0.0.1:8080] [PHOTO]

The client is the unmodified `tritonclient`. Without PHOTO it shows scikit-image's cat Chelsea.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image

SIDE = 224
# A request's own deadline, in microseconds, in place of the model's SLO: this computer may be busy.
TIMEOUT_US = 30_000_000


def photograph(path: Path | None) -> Image.Image:
    """The picture to classify."""
    if path is not None:
        return Image.open(path).convert("RGB")
    from skimage import data

    return Image.fromarray(data.chelsea())


def preprocess(photo: Image.Image) -> np.ndarray:
    """The whole picture squeezed into a square, as the network wants it: FP32 [1, 3, 224, 224], (x - 127) / 128."""
    square = photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pixels = (np.asarray(square, dtype=np.float32) - 127) / 128
    return pixels.transpose(2, 0, 1)[np.newaxis]


def classify(client: triton.InferenceServerClient, pixels: np.ndarray) -> np.ndarray:
    """The probabilities of the 1000 ImageNet classes."""
    image = triton.InferInput("image", list(pixels.shape), "FP32")
    image.set_data_from_numpy(pixels)
    result = client.infer("efficientnet-lite0", [image], timeout=TIMEOUT_US)
    logits = result.as_numpy("logits")[0].astype(np.float64)
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photo", nargs="?", type=Path, help="a JPEG or PNG file")
    parser.add_argument("--url", default="127.0.0.1:8080", help="the gateway's inference listener")
    arguments = parser.parse_args()

    labels = (Path(__file__).parent / "labels.txt").read_text().splitlines()
    pixels = preprocess(photograph(arguments.photo))
    client = triton.InferenceServerClient(arguments.url)
    classify(client, pixels)  # the first request opens the connection

    start = time.perf_counter()
    probabilities = classify(client, pixels)
    latency_ms = (time.perf_counter() - start) * 1000

    print(f"EfficientNet-Lite0 sees in {arguments.photo or 'the photograph chelsea of scikit-image'}:")
    for index in probabilities.argsort()[::-1][:5]:
        bar = "█" * round(probabilities[index] * 30)
        print(f"  {probabilities[index]:6.1%}  {labels[index]:<24} {bar}")
    print(f"  answered in {latency_ms:.1f} ms, seen from the client")


if __name__ == "__main__":
    main()
