"""The console scripts: each becomes the program of its name in the folder `bin` of the package.

The workers run with the libtorch of the PyTorch that this Python would import. It is found and not imported, which would take seconds.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

try:
    from packhorse._versions import PACKHORSE, TORCH
except ImportError:
    sys.exit(f"{Path(__file__).parent} is a checkout and has no programs: take it out of PYTHONPATH")

PROGRAMS = Path(__file__).parent / "bin"
# The variable in which the programs get the folder with libtorch.
LIBTORCH = "PACKHORSE_LIBTORCH"
# Arguments with which a program starts no worker, or has libtorch from elsewhere.
WITHOUT_TORCH = ("-h", "--help", "-V", "--version", "--manual-page", "--libtorch")


def packhorse() -> NoReturn:
    """Becomes the command, whose `export` is written in Python, because it calls PyTorch."""
    words = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if words[:1] == ["export"]:
        from packhorse import export_command

        place = sys.argv.index("export")
        folder_of_torch(is_needed=not runs_without_torch())
        sys.exit(export_command.main(sys.argv[place + 1 :]))
    become("packhorse", needs_libtorch=words[:1] == ["serve"])


def lab() -> NoReturn:
    """Becomes the laboratory, which measures programs by a worker of its own."""
    become("packhorse-lab", needs_libtorch=False)


def gateway() -> NoReturn:
    """Becomes the gateway."""
    become("packhorse-gateway", needs_libtorch=False)


def agent() -> NoReturn:
    """Becomes the agent."""
    become("packhorse-agent", needs_libtorch=True)


def worker() -> NoReturn:
    """Becomes a worker, as an agent would start it."""
    become("packhorse-worker", needs_libtorch=True)


def become(program: str, needs_libtorch: bool) -> NoReturn:
    """Replaces this process by a program of the package, which gets the folder with libtorch."""
    folder = os.environ.get(LIBTORCH) or folder_of_torch(needs_libtorch and not runs_without_torch())
    if folder:
        os.environ[LIBTORCH] = folder
        if program == "packhorse-worker":
            program = prepare_worker(Path(folder))
    path = str(PROGRAMS / program)
    os.execv(path, [path, *sys.argv[1:]])


def runs_without_torch() -> bool:
    """Returns true if the arguments say so."""
    return any(argument.split("=")[0] in WITHOUT_TORCH for argument in sys.argv[1:])


def prepare_worker(folder: Path) -> str:
    """Lets the loader find libtorch in a folder, or in its folder `torch`. Returns the worker that goes with it: a release has one more, for CUDA."""
    libraries = folder / "lib"
    if not libraries.exists():
        libraries = folder / "torch/lib"
    given = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{libraries}:{given}" if given else str(libraries)
    has_cuda = (libraries / "libtorch_cuda.so").exists() and (PROGRAMS / "packhorse-worker-cuda").exists()
    return "packhorse-worker-cuda" if has_cuda else "packhorse-worker"


def folder_of_torch(is_needed: bool) -> str | None:
    """Returns the folder of the PyTorch that this Python would import. Where it is needed and not there, a sentence says so."""
    folder, version = None, None
    spec = find_spec("torch")
    if spec and spec.origin:
        folder = os.path.dirname(spec.origin)
        version = version_in(Path(folder) / "version.py")
    if version and version.startswith(f"{TORCH}."):
        return folder
    if is_needed:
        has = f"{version} in {folder}" if version else "none"
        sys.exit(
            f"packhorse {PACKHORSE} needs PyTorch {TORCH}, and this Python has {has}: pip install 'torch=={TORCH}.*', "
            f"or name a folder with libtorch {TORCH} in {LIBTORCH}"
        )
    return None


def version_in(file: Path) -> str | None:
    """Returns the version that a module of PyTorch contains."""
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else None
