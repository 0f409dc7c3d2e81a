"""The errors that callers of the library meet; see `corral.kernel.errors` for their tree."""

from corral.kernel.errors import (
    Ambiguous,
    Conflict,
    CorralError,
    Held,
    IllegalMove,
    Invalid,
    NotFound,
    Refused,
    StoreUnavailable,
)

__all__ = [
    "Ambiguous",
    "Conflict",
    "CorralError",
    "Held",
    "IllegalMove",
    "Invalid",
    "NotFound",
    "Refused",
    "StoreUnavailable",
]
