"""An argument that was left out: what is stored stays as it is, where None would clear it."""

from typing import Any, Final


class _Kept:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final[Any] = _Kept()
