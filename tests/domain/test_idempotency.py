"""Idempotency keys: a repeated call returns the stored response."""

from typing import Any

import msgspec
import pytest

from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.db.tx import Tx
from corral.domain.idempotency import ops as idempotency
from corral.domain.idempotency import sql
from corral.errors import Conflict, Invalid
from corral.kernel.clock import DAY, ManualClock
from tests.support.store import raises_without_change, rows, unchanged

ARGUMENTS = {"mailbox": "queue:q", "body": 1}


def call_mail(store: Corral, verb: str = "put", arguments: Any = None, **key: str) -> bytes:
    idempotency_key = IdempotencyKey(**{"token_id": "tok_1", "key": "k", "fingerprint": "f", **key})
    return call_with_key(
        store.mail, verb, arguments or ARGUMENTS, key=idempotency_key, encode=msgspec.json.encode
    )


def test_operation_and_response_are_one_transaction(store: Corral) -> None:
    response = call_mail(store)
    with unchanged(store):
        assert call_mail(store) == response
    assert call_mail(store, key="other") != response
    assert call_mail(store, token_id="tok_2") != response


def test_key_reused_for_another_call_conflicts(store: Corral) -> None:
    call_mail(store)
    with raises_without_change(store, Conflict):
        call_mail(store, fingerprint="g")


def test_key_discarded_concurrently_can_be_used_again(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._database.write(lambda tx: idempotency.begin(tx, "tok_1", "k", "f"))
    first = Tx.first

    def discard_before_reading(tx: Tx, query: Any, **params: Any) -> Any:
        if query is sql.GET:
            idempotency.discard(tx, "tok_1", "k")
        return first(tx, query, **params)

    monkeypatch.setattr(Tx, "first", discard_before_reading)
    assert call_mail(store)


def test_rejected_call_stores_no_response(store: Corral) -> None:
    for verb, arguments in (("put", {"mailbox": "invalid", "body": 1}), ("list", {"limit": 0})):
        with pytest.raises(Invalid):
            call_mail(store, verb, arguments)
        assert rows(store, "SELECT count(*) FROM idempotency_keys") == [(0,)]


def test_null_response_is_stored(store: Corral) -> None:
    assert call_mail(store, "next_due", {"mailbox": "queue:q"}) == b"null"
    with unchanged(store):
        assert call_mail(store, "next_due", {"mailbox": "queue:q"}) == b"null"


def test_interrupted_composed_call_is_not_repeated(store: Corral) -> None:
    def interrupt(_: object) -> bytes:
        raise KeyboardInterrupt

    store.mail.put("queue:q", 1)
    arguments = {"mailbox": "queue:q", "owner": "o"}
    with pytest.raises(KeyboardInterrupt):
        call_with_key(
            store.mail, "claim", arguments, key=IdempotencyKey("tok_1", "k", "f"), encode=interrupt
        )
    with raises_without_change(store, Conflict) as caught:
        call_mail(store, "claim", arguments)
    assert caught.value.message == (
        "The call 'k' was begun and has no response yet. Retry in a moment; if that does not help, "
        "check its effects before you repeat it under a new key."
    )


def test_retention_deletes_old_responses(store: Corral, clock: ManualClock) -> None:
    response = call_mail(store)
    clock.advance(2 * DAY)
    call_mail(store, key="recent")
    assert {result.table: result.rows for result in store.db.prune()}["idempotency_keys"] == 1
    assert call_mail(store) != response


def test_key_length_is_limited(store: Corral) -> None:
    for key in ("", "x" * 201, "a\0b"):
        with raises_without_change(store, Invalid):
            call_mail(store, key=key)
