"""An answer is what a write call from outside was told, kept under the key that its caller gave."""

import msgspec


class Answer(msgspec.Struct, frozen=True):
    id: str
    fingerprint: str
    """Of what was asked for: the same key with something else is a mistake of the caller's."""
    body: msgspec.Raw | None
    """JSON as it was given. None: it was begun, and whether it was done is not known."""
    created_at: int
