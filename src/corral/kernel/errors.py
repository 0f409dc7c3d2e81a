"""Everything that Corral raises on purpose, as one tree.

    CorralError
    ├── Invalid             the caller gave something that can never work
    ├── NotFound            no such thing
    ├── Refused             understood, and not allowed
    │   └── Ambiguous       a shortened id fits several things
    ├── Conflict            somebody else's change stands in the way
    │   ├── IllegalMove     the thing is in a state from which this verb does not lead
    │   ├── Held            another owner holds it, or took it over since
    │   └── NoRoom          as many as allowed are going; it waits in line
    └── StoreUnavailable    the store cannot be used; `details["reason"]` says why

`code` is stable and machine-readable; the message is one sentence for a person and names the next
step; `details` holds the facts that the sentence was made from.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class CorralError(Exception):
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


class Conflict(CorralError):
    code = "conflict"


class IllegalMove(Conflict):
    code = "illegal_move"


class Held(Conflict):
    code = "held"


class NoRoom(Conflict):
    code = "no_room"


class StoreUnavailable(CorralError):
    """Reasons: missing, missing_package, unwritable, locked, newer, older, old_sqlite, old_server,
    foreign, encoding, corrupt, full, io, unreachable, network_file_system, unknown_outcome,
    engine, moved, arriving, too_many_clients, pooler, replaced, log_full,
    hard_linked, idle_transaction."""

    code = "store_unavailable"

    def __init__(self, message: str, *, reason: str, **details: Any) -> None:
        super().__init__(message, reason=reason, **details)
        self.reason = reason


def raised_elsewhere(code: str, message: str, details: Mapping[str, Any]) -> CorralError:
    """An error as another process of ours raised it."""
    kinds = [CorralError]
    for kind in kinds:
        if kind.code == code:
            return kind(message, **details)
        kinds += kind.__subclasses__()
    return CorralError(message, **details)
