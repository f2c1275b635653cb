"""Photographs as they are beside tensors of them, in turn: `python examples/photographs.py http://127.0.0.1:8080 resnet18 cat.jpg`.

The model takes pictures of 224 by 224 pixels, as `packhorse export torchvision:resnet18 models/resnet18` declares them.
The client of tensors decodes and resizes by Pillow and torchvision, and sends the tensor as binary data.
"""

import argparse
import http.client
import json
import statistics
import time
import urllib.parse
from pathlib import Path

import torch
from PIL import Image
from torchvision.transforms import v2

ROUNDS = 200
TRANSFORMS = v2.Compose(
    [
        v2.Resize(256),
        v2.CenterCrop(224),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(given.url).netloc)
    path = f"/v2/models/{given.model}"
    connection.request("GET", path)
    described = json.load(connection.getresponse())
    (input_of, *_), (output_of, *_) = described["inputs"], described["outputs"]
    classes = {"name": output_of["name"], "parameters": {"classification": 5}}

    def ask(body: bytes, headers: dict[str, str]) -> list[str]:
        connection.request("POST", f"{path}/infer", body, headers)
        answer = json.load(connection.getresponse())
        return [text.split(":")[1] for text in answer["outputs"][0]["data"]]

    def as_it_is() -> tuple[int, list[str]]:
        body = given.picture.read_bytes()
        return len(body), ask(body, {"content-type": "image/jpeg"})

    def as_tensor() -> tuple[int, list[str]]:
        with Image.open(given.picture) as image:
            tensor = TRANSFORMS(image.convert("RGB")).unsqueeze(0)
        data = tensor.numpy().tobytes()
        told = {"name": input_of["name"], "datatype": "FP32", "shape": list(tensor.shape), "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [told], "outputs": [classes]}).encode()
        body = head + data
        return len(body), ask(body, {"inference-header-content-length": str(len(head))})

    ways = {"as it is": as_it_is, "tensor": as_tensor}
    times: dict[str, list[float]] = {name: [] for name in ways}
    sent, found = {}, {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            begun = time.perf_counter()
            sent[name], found[name] = way()
            times[name].append((time.perf_counter() - begun) * 1e3)
    best = {name: classes[0] for name, classes in found.items()}
    print(f"{'':>9} {'bytes':>8} {'p50, ms':>8} {'best class':>11}")
    for name in ways:
        print(f"{name:>9} {sent[name]:>8} {statistics.median(times[name]):>8.2f} {best[name]:>11}")


if __name__ == "__main__":
    main()
