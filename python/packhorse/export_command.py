"""The command `packhorse export`: from what people have to a folder of a model repository."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default those of the program; the exit status."""
    options = parser().parse_args(argv)
    # Ended as by Ctrl-C, so that no half of a folder stays.
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, lambda number, _: sys.exit(128 + number))
    from packhorse._export import ExportError, export
    from packhorse._sources import open_source

    try:
        source = open_source(options.source, weights=options.weights, shape=options.shape, encoder=options.encoder)
        given = {
            "slo_ms": options.slo_ms,
            "max_batch_size": options.max_batch_size,
            "dynamic": source.options.get("dynamic", {}) | by_name(options.dynamic or []),
            "outputs": options.outputs,
            "compile": options.compile or None,
            "overwrite": options.overwrite or None,
        }
        made = export(source.model, source.example_inputs, options.folder, **source.options | {name: value for name, value in given.items() if value is not None})
    except ExportError as e:
        print(f"packhorse export: {e}", file=sys.stderr)
        return 1
    for side in ("inputs", "outputs"):
        for tensor in made.registration[side]:
            limits = f", at most {tensor['max_shape']}" if "max_shape" in tensor else ""
            print(f"{side[:-1]} {tensor['name']} {tensor['datatype']} {tensor['shape']}{limits}")
    for note in made.notes:
        print(note)
    print(f"{made.artifact} answers as the model does: {made.difference:.2g} at most apart with inputs of {', '.join(made.compared)} ({made.seconds:.1f} s)")
    print(f"serve it: packhorse serve {shlex.quote(str(made.folder.parent))}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="packhorse export", description="Writes a PyTorch model as a folder of a model repository.")
    made.add_argument("source", metavar="SOURCE", help="timm:NAME, torchvision:NAME, a folder of Hugging Face, or FILE.py:FUNCTION")
    made.add_argument("folder", metavar="DIR", type=Path, help="the folder to write, whose name is the model's, such as models/resnet50")
    made.add_argument("--slo-ms", type=float, help="the time from a request's arrival to its answer (default: 100)")
    made.add_argument("--max-batch-size", type=int, help="the most rows of a batch, 0 for a model without a batch dimension (default: 8)")
    made.add_argument("--dynamic", action="append", metavar="NAME:AXIS[:MIN:MAX]", help="a dimension of an input that varies; may be given several times")
    made.add_argument("--outputs", type=lambda text: text.split(","), metavar="NAME,…", help="the outputs to keep (default: all)")
    made.add_argument("--compile", action="store_true", help="make an AOTInductor package, which takes half a minute, in place of TorchScript")
    made.add_argument("--weights", default="pretrained", help="of timm and torchvision: pretrained (default), random, or a file with a state_dict")
    made.add_argument("--shape", type=image_shape, metavar="3,H,W", help="of timm and torchvision: the image's")
    made.add_argument("--encoder", action="store_true", help="of a Hugging Face folder: the encoder without its decoder")
    made.add_argument("--overwrite", action="store_true", help="replace the folder if it exists")
    return made


def image_shape(text: str) -> list[int]:
    """The channels, the height and the width of an image."""
    sizes = text.split(",")
    if len(sizes) not in (3, 4) or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: expected 3,HEIGHT,WIDTH, such as 3,224,224, or 3,FRAMES,HEIGHT,WIDTH")
    return [int(size) for size in sizes]


def by_name(given: Sequence[str]) -> dict[str, dict[int, tuple[int, int] | None]]:
    """The dimensions of --dynamic by input."""
    from packhorse._folder import ExportError

    found: dict[str, dict[int, tuple[int, int] | None]] = {}
    for text in given:
        name, *numbers = text.split(":")
        if len(numbers) not in (1, 3) or not all(number.isdecimal() for number in numbers):
            raise ExportError(f"--dynamic: {text!r}: expected NAME:AXIS or NAME:AXIS:MIN:MAX, such as mel:2:100:3000")
        axis, *bounds = map(int, numbers)
        found.setdefault(name, {})[axis] = (bounds[0], bounds[1]) if bounds else None
    return found


if __name__ == "__main__":
    sys.exit(main())
