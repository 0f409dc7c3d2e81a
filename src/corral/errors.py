"""The exceptions of the library; see `corral.kernel.errors` for the hierarchy."""

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
