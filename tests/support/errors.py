"""Assert why an operation failed, by the machine-readable `reason` of the error."""

from collections.abc import Callable
from typing import Any, Protocol


class HasDetails(Protocol):
    details: Any


def because(reason: str, **details: object) -> Callable[[HasDetails], bool]:
    """Return a check for `pytest.raises`: the error has this reason and these details."""
    expected = {"reason": reason, **details}

    def has_reason(error: HasDetails) -> bool:
        return {name: error.details.get(name) for name in expected} == expected

    return has_reason
