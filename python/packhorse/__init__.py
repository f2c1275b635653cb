"""Packhorse for Python: `export` writes a PyTorch module as a folder of a model repository.

Importing the package imports nothing heavy: PyTorch comes with the first use of `export`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packhorse._export import Exported, ExportError, export

__all__ = ["ExportError", "Exported", "export"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from packhorse import _export

    return getattr(_export, name)
