"""A folder that is there whole or not at all, and the error of whoever makes it."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


class ExportError(ValueError):
    """What keeps a model from being exported, and what to do about it."""


@contextlib.contextmanager
def new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Gives a folder to fill, which takes its place when it is full.

    It is a hidden sibling meanwhile, which no reader of a model repository takes for a model, and is gone if anything fails. What a killed process left
    goes with the next one for the same folder.
    """
    check_absent(folder, overwrite)
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder)
        made = Path(tempfile.mkdtemp(prefix=prefix_of(folder), dir=folder.parent))
        lock = os.open(made, os.O_RDONLY)
    except OSError as e:
        raise ExportError(f"cannot write into {folder.parent}: {e.strerror}") from e
    try:
        # Tells others that this process lives.
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.chmod(0o755)
        yield made
        check_absent(folder, overwrite)
        old = made.with_name(f"{made.name}.old")
        if folder.exists():
            folder.rename(old)
        try:
            made.rename(folder)
        except BaseException:
            if old.exists():
                old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise ExportError(f"cannot write {folder}: {e}") from e
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)
        # The nearest first: one with anything in it stays, and so do those around it.
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()


def prefix_of(folder: Path) -> str:
    """The beginning of the names that a folder has until it is full."""
    return f".{folder.name}.export-"


def remove_abandoned(folder: Path) -> None:
    """Removes the siblings of processes that were killed before their folder was full. One that was to be replaced stays if nothing replaced it."""
    for found in folder.parent.glob(f"{glob.escape(prefix_of(folder))}*"):
        if found.suffix == ".old" and not folder.exists():
            continue
        try:
            lock = os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def check_absent(folder: Path, overwrite: bool) -> None:
    """Refuses a folder that is there, unless it is a model's and may be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not overwrite:
        raise ExportError(f"{folder} exists: choose another folder, or replace it with overwrite=True (--overwrite)")
    if not (folder / "model.json").is_file() or folder.is_symlink():
        raise ExportError(f"{folder} is not replaced, since it is not a model's folder (there is no model.json): choose another one")
