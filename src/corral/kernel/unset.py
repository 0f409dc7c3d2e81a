"""`UNSET`: the default of arguments for which None means "clear the stored value"."""

from typing import Any, Final


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()
