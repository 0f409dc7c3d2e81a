"""Faster import of msgspec for commands that run for only a few milliseconds."""

import sys

# Type checkers know this name; importing it from typing would double the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes longer than msgspec itself.

    Every name that msgspec takes from typing_extensions also exists in typing. Other packages can
    still import typing_extensions afterwards.
    """
    modules: dict[str, Any] = sys.modules
    modules["typing_extensions"] = None
    try:
        __import__("msgspec")
    finally:
        del modules["typing_extensions"]
