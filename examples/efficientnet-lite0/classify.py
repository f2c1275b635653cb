"""Asks EfficientNet-Lite0 what a photograph shows.

    python examples/efficientnet-lite0/classify.py [--url 127.0.0.1:8080] [PHOTO]

The client is the unmodified `tritonclient`, which sends the photograph as it is. Without PHOTO it shows scikit-image's cat Chelsea.
"""

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton

# A request's own deadline, in microseconds, in place of the model's SLO: this computer may be busy.
TIMEOUT_US = 30_000_000


def chelsea() -> Path:
    """The file of scikit-image's cat."""
    return Path(importlib.util.find_spec("skimage").origin).parent / "data/chelsea.png"


def classify(client: triton.InferenceServerClient, photo: bytes) -> list[tuple[float, str]]:
    """The five best classes with their probabilities."""
    image = triton.InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([photo], dtype=np.object_))
    best = triton.InferRequestedOutput("logits", class_count=5)
    result = client.infer("efficientnet-lite0", [image], outputs=[best], timeout=TIMEOUT_US)
    classes = [text.decode().split(":", 2) for text in result.as_numpy("logits")[0]]
    return [(float(probability), label) for probability, _, label in classes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photo", nargs="?", type=Path, help="a JPEG, PNG or WebP file")
    parser.add_argument("--url", default="127.0.0.1:8080", help="the gateway's inference listener")
    arguments = parser.parse_args()

    photo = (arguments.photo or chelsea()).read_bytes()
    client = triton.InferenceServerClient(arguments.url)
    classify(client, photo)  # the first request opens the connection

    start = time.perf_counter()
    classes = classify(client, photo)
    latency_ms = (time.perf_counter() - start) * 1000

    print(f"EfficientNet-Lite0 sees in {arguments.photo or 'the photograph chelsea of scikit-image'}:")
    for probability, label in classes:
        bar = "█" * round(probability * 30)
        print(f"  {probability:6.1%}  {label:<24} {bar}")
    print(f"  answered in {latency_ms:.1f} ms, seen from the client")


if __name__ == "__main__":
    main()
