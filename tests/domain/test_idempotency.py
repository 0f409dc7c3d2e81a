"""Idempotency keys: a repeated call returns the stored response."""

from typing import Any

import msgspec
import pytest

import corral
from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.api.operation import Resource, operation
from corral.db.tx import Tx
from corral.domain.idempotency import ops as idempotency
from corral.domain.idempotency import sql
from corral.domain.mail import ops as mail
from corral.errors import Conflict, Invalid, Refused
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import NotYet
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


class FailingWorkflow(Resource):
    """A workflow that raises an error, perhaps after it has committed a letter."""

    @operation()
    def run(self, error: Exception, *, commits: bool) -> None:
        if commits:
            self._database.write(lambda tx: mail.put(tx, "queue:q", "kept"))
        raise error


def fail_with_key(store: Corral, error: Exception, *, commits: bool) -> None:
    resource = FailingWorkflow(store._executor)
    arguments = {"error": error, "commits": commits}
    key = IdempotencyKey("tok_1", "k", "f")
    call_with_key(resource, "run", arguments, key=key, encode=msgspec.json.encode)


@pytest.mark.parametrize("kind", [Refused, TypeError])
def test_workflow_that_failed_after_a_commit_is_not_repeated(
    store: Corral, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        fail_with_key(store, kind("in the second transaction"), commits=True)
    with raises_without_change(store, Conflict) as caught:
        fail_with_key(store, kind("in the second transaction"), commits=True)
    assert caught.value.details["reason"] == "still_running"
    assert [letter.body for letter in store.mail.list().items] == ["kept"]


@pytest.mark.parametrize(
    ("error", "commits"),
    [
        (Refused("before any change"), False),
        (TypeError("before any change"), False),
        (NotYet("still waiting"), True),
    ],
)
def test_workflow_that_may_be_repeated_keeps_no_key(
    store: Corral, error: Exception, commits: bool
) -> None:
    for _ in range(2):
        with pytest.raises(type(error)):
            fail_with_key(store, error, commits=commits)
    assert rows(store, "SELECT count(*) FROM idempotency_keys") == [(0,)]


def test_put_of_an_agent_and_its_response_are_one_transaction(url: str) -> None:
    commits: list[str] = []
    with corral.open(url, probe=commits.append) as store:
        store.agents.create("ada", command="true")
        acting = store.as_actor("agent:ada")
        arguments = {"mailbox": "agent:bob", "body": 1}
        commits.clear()
        response = call_mail(acting, arguments=arguments)
        assert commits.count("after commit") == 1
        with unchanged(store):
            assert call_mail(acting, arguments=arguments) == response


def test_put_beyond_the_hop_limit_commits_its_notice_and_keeps_no_key(store: Corral) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name, command="true")
    store.settings.set("mail.max_hops", 1)
    letter = store.mail.write("ada", "ping", to="ben", run="run_1")
    store.mail.read_by([letter.id], run="run_2")
    acting = store.as_actor("agent:ben", run_id="run_2")
    with pytest.raises(Refused) as caught:
        call_mail(acting, arguments={"mailbox": "agent:ada", "body": "pong"})
    assert caught.value.details["reason"] == "hop_limit"
    (notice,) = store.mail.list(mailbox="agent:ada").items
    assert "undelivered" in notice.body
    assert rows(store, "SELECT count(*) FROM idempotency_keys") == [(0,)]


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
