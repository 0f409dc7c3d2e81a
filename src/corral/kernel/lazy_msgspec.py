"""What a process of a few milliseconds loads, loaded in less time."""

import sys

# Type checkers know this name; importing it from typing would double the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load_msgspec() -> None:
    """Load msgspec without typing_extensions, which takes longer than all of it.

    What msgspec takes from there, where that is installed, is in typing too; others may need more
    of it, and find it as ever.
    """
    modules: dict[str, Any] = sys.modules
    modules["typing_extensions"] = None
    try:
        __import__("msgspec")
    finally:
        del modules["typing_extensions"]
