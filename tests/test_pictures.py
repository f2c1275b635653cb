"""The committed digests of pictures are what the installed Pillow and torchvision make of them; Rust's tests compare with the digests."""

import importlib.util
import json
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "crates/preprocess/tests/pictures"


def test_the_committed_digests_are_those_of_pillow():
    spec = importlib.util.spec_from_file_location("make_pictures", PICTURES / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    committed = json.loads((PICTURES / "expected.json").read_text())
    assert committed["declarations"] == make.DECLARATIONS
    files = make.committed(committed["sha256"]["bilinear"])
    assert make.expected(files) == committed["sha256"]
