"""Beginning a call once, and keeping what it was answered."""

from corral.db.tx import Tx
from corral.domain.idempotency import sql
from corral.domain.idempotency.model import Answer
from corral.kernel.errors import Conflict
from corral.kernel.text import MAX_NAME, clean_text

KEPT = sql.KEPT


def begin(tx: Tx, token_id: str, key: str, fingerprint: str) -> Answer | None:
    """Begin a call under its caller's key; the earlier answer when it was made before.

    Conflict when the key stood for another call, or when that call was begun and has no answer yet:
    it is still being worked on, or whoever did died, and whether it was done is not known.
    """
    clean_text(key, "The Idempotency-Key", most=MAX_NAME)
    begun = tx.run(
        sql.BEGIN,
        id=tx.new_id("ans"),
        token_id=token_id,
        key=key,
        fingerprint=fingerprint,
        now=tx.now,
    )
    if begun:
        return None
    found = tx.one(sql.GET, token_id=token_id, key=key)
    if found is None or found.fingerprint != fingerprint:
        raise Conflict(
            f"The Idempotency-Key {key!r} stood for another call; take a new one for this.",
            key=key,
            reason="key_reused",
        )
    if found.body is None:
        raise Conflict(
            f"The call {key!r} was begun and has no answer yet; ask again in a moment, and if it "
            "still has none, look at what it should have done before you make it under a new key.",
            key=key,
            begun_at=found.created_at,
            reason="still_running",
        )
    return found


def keep(tx: Tx, token_id: str, key: str, body: str) -> None:
    """Keep the answer (JSON text) of a call that was begun."""
    tx.run(sql.KEEP, token_id=token_id, key=key, body=body)


def drop(tx: Tx, token_id: str, key: str) -> None:
    """Forget a call that was refused before it did anything: it may be made again."""
    tx.run(sql.DROP, token_id=token_id, key=key)
