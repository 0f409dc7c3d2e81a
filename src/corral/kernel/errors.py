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
`details` holds the values that the message was built from. The HTTP API answers with `http_status`,
and the command line exits with `exit_status`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class CorralError(Exception):
    """The base class of all exceptions that Corral raises."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class Invalid(CorralError):
    code = "invalid"
    http_status = 400
    exit_status = 2


class NotFound(CorralError):
    code = "not_found"
    http_status = 404
    exit_status = 3


class Refused(CorralError):
    code = "refused"
    http_status = 403
    exit_status = 4


class Ambiguous(Refused):
    code = "ambiguous"
    http_status = 409


class NotYet(Refused):
    """A wait timed out. Clients see the code of `Refused`, and `timed_out` in the details."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details | {"timed_out": True})


class Conflict(CorralError):
    code = "conflict"
    http_status = 409
    exit_status = 4


class IllegalMove(Conflict):
    code = "illegal_move"


class Held(Conflict):
    code = "held"
    http_status = 423


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
    http_status = 503
    exit_status = 5

    def __init__(self, message: str, *, reason: str, **details: Any) -> None:
        super().__init__(message, reason=reason, **details)
        self.reason = reason


def list_error_classes(base: type[CorralError] = CorralError) -> Iterator[type[CorralError]]:
    """Return an error class and all its subclasses, each before its subclasses."""
    yield base
    for subclass in base.__subclasses__():
        yield from list_error_classes(subclass)


def error_from_code(code: str, message: str, details: Mapping[str, Any]) -> CorralError:
    """Rebuild an error that another Corral process raised and sent as JSON."""
    if code == NotYet.code and details.get("timed_out"):
        return NotYet(message, **details)
    for error_class in list_error_classes():
        if error_class.code == code:
            return error_class(message, **details)
    return CorralError(message, **details)
