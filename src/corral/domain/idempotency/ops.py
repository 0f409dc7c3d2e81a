"""Begin a call once per idempotency key, and store its response."""

from corral.db.tx import Tx
from corral.domain.idempotency import sql
from corral.domain.idempotency.model import StoredResponse
from corral.kernel.errors import Conflict
from corral.kernel.validation import MAX_NAME, check_text

RETENTION = sql.RETENTION


def begin(tx: Tx, token_id: str, key: str, fingerprint: str) -> StoredResponse | None:
    """Begin a call under its idempotency key; returns the stored response of an earlier call.

    None: this is the first call. Raises Conflict when the key was used for another request, or when
    the earlier call has no response: it is in progress, or it crashed with an unknown outcome.
    """
    check_text(key, "The Idempotency-Key", max_bytes=MAX_NAME)
    stored = None
    while stored is None:  # the earlier call may be discarded between the INSERT and the SELECT
        inserted = tx.run(
            sql.BEGIN,
            id=tx.new_id("idk"),
            token_id=token_id,
            key=key,
            fingerprint=fingerprint,
            now=tx.now,
        )
        if inserted:
            return None
        stored = tx.first(sql.GET, token_id=token_id, key=key)
    if stored.fingerprint != fingerprint:
        raise Conflict(
            f"The Idempotency-Key {key!r} was used for another request. Use a new key.",
            key=key,
            reason="key_reused",
        )
    if stored.response is None:
        raise Conflict(
            f"The call {key!r} was begun and has no response yet. Retry in a moment; if that does "
            "not help, check its effects before you repeat it under a new key.",
            key=key,
            begun_at=stored.created_at,
            reason="still_running",
        )
    return stored


def store_response(tx: Tx, token_id: str, key: str, response: str) -> None:
    """Store the response (JSON text) of a call that was begun."""
    tx.run(sql.SET_RESPONSE, token_id=token_id, key=key, response=response)


def discard(tx: Tx, token_id: str, key: str) -> None:
    """Discard a call that was rejected without effect, so that it can be repeated."""
    tx.run(sql.DELETE_PENDING, token_id=token_id, key=key)
