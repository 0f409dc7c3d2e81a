"""A stored response is the result of a write call, under the idempotency key of its caller."""

import msgspec


class StoredResponse(msgspec.Struct, frozen=True):
    """The response to a call with an idempotency key."""

    id: str
    fingerprint: str
    """A hash of the request: reusing the key for another request is an error of the caller."""
    response: msgspec.Raw | None
    """The JSON of the response. None: the call was begun, and its outcome is unknown."""
    created_at: int
