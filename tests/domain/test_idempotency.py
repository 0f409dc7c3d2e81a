"""Idempotency keys: a repeated call returns the stored response."""

from typing import Any

import msgspec
import pytest

from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.errors import Conflict, Invalid
from corral.kernel.clock import DAY, ManualClock
from tests.support.store import refuses, rows, unchanged

SENT = {"mailbox": "queue:q", "body": 1}


def call(store: Corral, verb: str = "put", sent: Any = None, **key: str) -> bytes:
    named = IdempotencyKey(**{"token_id": "tok_1", "key": "k", "fingerprint": "f", **key})
    return call_with_key(store.mail, verb, sent or SENT, key=named, encode=msgspec.json.encode)


def test_operation_and_response_are_one_transaction(store: Corral) -> None:
    first = call(store)
    with unchanged(store):
        assert call(store) == first
    assert call(store, key="other") != first
    assert call(store, token_id="tok_2") != first


def test_key_reused_for_another_call_conflicts(store: Corral) -> None:
    call(store)
    with refuses(store, Conflict):
        call(store, fingerprint="g")


def test_rejected_call_stores_no_response(store: Corral) -> None:
    for verb, sent in (("put", {"mailbox": "nowhere", "body": 1}), ("list", {"limit": 0})):
        with pytest.raises(Invalid):
            call(store, verb, sent)
        assert rows(store, "SELECT count(*) FROM idempotency_keys") == [(0,)]


def test_null_response_is_stored(store: Corral) -> None:
    assert call(store, "next_due", {"mailbox": "queue:q"}) == b"null"
    with unchanged(store):
        assert call(store, "next_due", {"mailbox": "queue:q"}) == b"null"


def test_interrupted_composed_call_is_not_repeated(store: Corral) -> None:
    def cut_off(_: object) -> bytes:
        raise KeyboardInterrupt

    store.mail.put("queue:q", 1)
    sent = {"mailbox": "queue:q", "owner": "o"}
    with pytest.raises(KeyboardInterrupt):
        call_with_key(
            store.mail, "claim", sent, key=IdempotencyKey("tok_1", "k", "f"), encode=cut_off
        )
    with refuses(store, Conflict) as caught:
        call(store, "claim", sent)
    assert caught.value.message == (
        "The call 'k' was begun and has no response yet. Retry in a moment; if that does not help, "
        "check its effects before you repeat it under a new key."
    )


def test_retention_deletes_old_responses(store: Corral, clock: ManualClock) -> None:
    first = call(store)
    clock.advance(2 * DAY)
    call(store, key="young")
    assert {one.table: one.rows for one in store.db.prune()}["idempotency_keys"] == 1
    assert call(store) != first


def test_key_length_is_limited(store: Corral) -> None:
    for wrong in ("", "x" * 201, "a\0b"):
        with refuses(store, Invalid):
            call(store, key=wrong)
