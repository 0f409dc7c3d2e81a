"""The exceptions that Corral raises, as one hierarchy.

    CorralError
    ├── Invalid             the input can never be accepted
    ├── NotFound            the object does not exist
    ├── Refused             a valid request that is not allowed
    │   ├── Ambiguous       a shortened id matches several objects
    │   └── NotYet          a wait timed out; waiting again may succeed
    ├── Conflict            a concurrent or earlier change prevents the request
    │   ├── IllegalMove     the object's current state does not allow the verb
    │   ├── Held            another owner holds the object, or has taken it over
    │   └── NoRoom          the concurrency limit is reached; the request stays queued
    └── StoreUnavailable    the store cannot be used; `details["reason"]` is the cause

`code` is stable and machine-readable. `message` is for people: what failed, why, and what to do.
`details` holds the values that the message was built from.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class CorralError(Exception):
    """The base class of all exceptions that Corral raises."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class Invalid(CorralError):
    code = "invalid"


class NotFound(CorralError):
    code = "not_found"


class Refused(CorralError):
    code = "refused"


class Ambiguous(Refused):
    code = "ambiguous"


class NotYet(Refused):
    """A wait timed out. Clients see the code of `Refused`, and `timed_out` in the details."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details | {"timed_out": True})


class Conflict(CorralError):
    code = "conflict"


class IllegalMove(Conflict):
    code = "illegal_move"


class Held(Conflict):
    code = "held"


class NoRoom(Conflict):
    code = "no_room"


class StoreUnavailable(CorralError):
    """The store cannot be used.

    Reasons: missing, missing_package, unwritable, locked, newer, older, old_sqlite, old_server,
    foreign, encoding, corrupt, full, io, unreachable, network_file_system, unknown_outcome,
    engine, moved, arriving, too_many_clients, pooler, replaced, log_full,
    hard_linked, idle_transaction.
    """

    code = "store_unavailable"

    def __init__(self, message: str, *, reason: str, **details: Any) -> None:
        super().__init__(message, reason=reason, **details)
        self.reason = reason


def error_from_code(code: str, message: str, details: Mapping[str, Any]) -> CorralError:
    """Rebuild an error that another Corral process raised and sent as JSON."""
    if code == NotYet.code and details.get("timed_out"):
        return NotYet(message, **details)
    classes = [CorralError]
    for error_class in classes:
        if error_class.code == code:
            return error_class(message, **details)
        classes += error_class.__subclasses__()
    return CorralError(message, **details)
