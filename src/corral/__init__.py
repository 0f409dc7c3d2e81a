"""Corral: the system of record and the supervisor for AI agents.

Importing this package loads nothing else, because agents call `corral` from hooks. The library
behind `corral.open` is imported on first use.
"""

# Type checkers know this name; importing it from typing would double the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral import errors as errors
    from corral.api import Corral as Corral
    from corral.api import connect as connect
    from corral.api import open as open

__version__ = "0.1.0"
__all__ = ["Corral", "__version__", "connect", "errors", "open"]


def __getattr__(name: str) -> "Any":
    if name in ("Corral", "connect", "open"):
        from corral import api

        return getattr(api, name)
    if name == "errors":
        from importlib import import_module

        return import_module("corral.errors")
    raise AttributeError(f"module 'corral' has no attribute {name!r}")
