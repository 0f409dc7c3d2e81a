"""Tokens: scopes, expiry, revocation and private files."""

import os
from pathlib import Path

import pytest

from corral.api import Corral
from corral.errors import Conflict, IllegalMove, Invalid, NotFound, Refused
from corral.kernel.clock import DAY, MINUTE, ManualClock
from tests.support.store import contents, list_events, raises_without_change, unchanged, walk


def test_token_permits_its_scope(store: Corral) -> None:
    token = store.tokens.create("script", scope="read")
    identity = store.internal.tokens.check(token.value)
    assert (identity.id, identity.name, identity.scope, identity.actor) == (
        token.token.id,
        "script",
        "read",
        "token:script",
    )
    assert not identity.may_write
    assert store.internal.tokens.check(store.tokens.create("other").value).may_write
    assert list_events(store, token.token.id) == ["token.create"]


def test_secret_of_a_token_is_not_stored(store: Corral) -> None:
    token = store.tokens.create("script")
    assert token.value not in repr(contents(store))
    assert token.value.removeprefix("crl_") not in repr(contents(store))


def test_invalid_secret_is_rejected_and_not_repeated(store: Corral) -> None:
    store.tokens.create("script")
    for value in ("", "x", "crl_", "crl_" + "0" * 64, "crl_" + "0" * 63 + "\n", "tok_1"):
        with raises_without_change(store, Refused) as caught:
            store.internal.tokens.check(value)
        assert caught.value.details == {"reason": "unknown_token"}
        assert len(value) < 10 or value not in caught.value.message


def test_revoked_token_is_rejected_and_frees_its_name(store: Corral) -> None:
    token = store.tokens.create("script")
    assert store.tokens.revoke("script").ended_at is not None
    with raises_without_change(store, Refused):
        store.internal.tokens.check(token.value)
    with raises_without_change(store, IllegalMove):
        store.tokens.revoke(token.token.id)
    with raises_without_change(store, NotFound):
        store.tokens.revoke("script")
    assert store.tokens.create("script").token.id != token.token.id


def test_token_expires(store: Corral, clock: ManualClock) -> None:
    token = store.tokens.create("script", ttl_ms=1_000)
    clock.advance(999)
    store.internal.tokens.check(token.value)
    clock.advance(1)
    with raises_without_change(store, Refused) as caught:
        store.internal.tokens.check(token.value)
    assert caught.value.details["reason"] == "expired"


def test_token_name_is_unique(store: Corral) -> None:
    store.tokens.create("script")
    with raises_without_change(store, Conflict):
        store.tokens.create("script")
    for name in ("", "a b", "-x", "x" * 61, "tok:1", "ü"):
        with raises_without_change(store, Invalid):
            store.tokens.create(name)
    for scope in ("", "all", "agent:", "read "):
        with raises_without_change(store, Invalid):
            store.tokens.create("x", scope=scope)
    with raises_without_change(store, Invalid):
        store.tokens.create("x", ttl_ms=0)


def test_agent_token_acts_as_agent_until_it_is_retired(store: Corral) -> None:
    agent = store.agents.create("ada")
    token = store.tokens.create("ada-laptop", scope="agent:ada")
    identity = store.internal.tokens.check(token.value)
    assert (identity.scope, identity.agent, identity.actor) == (
        f"agent:{agent.id}",
        "ada",
        "agent:ada",
    )
    store.agents.retire("ada")
    with raises_without_change(store, Refused):
        store.internal.tokens.check(token.value)
    with raises_without_change(store, NotFound):
        store.tokens.create("x", scope="agent:unknown")


def test_use_is_recorded_once_a_minute_without_event(store: Corral, clock: ManualClock) -> None:
    id = store.tokens.create("script").token.id
    clock.advance(MINUTE)
    assert store.internal.tokens.record_use(id)
    first_use = store.tokens.get("script").used_at
    with unchanged(store):
        assert not store.internal.tokens.record_use(id)
    clock.advance(MINUTE + 1)
    assert store.internal.tokens.record_use(id)
    assert store.tokens.get("script").used_at == clock.now() != first_use
    assert list_events(store, id) == ["token.create"]


def test_active_tokens_are_listed_by_name_and_all_by_age(store: Corral) -> None:
    for name in ("c", "a", "b"):
        store.tokens.create(name)
    store.tokens.revoke("a")
    assert [token.name for token in walk(store.tokens.list, limit=1)] == ["b", "c"]
    assert [token.name for token in walk(store.tokens.list, limit=2, all=True)] == ["c", "a", "b"]


def test_retention_deletes_old_tokens(store: Corral, clock: ManualClock) -> None:
    store.tokens.create("old", ttl_ms=DAY)
    store.tokens.create("revoked")
    store.tokens.revoke("revoked")
    store.tokens.create("active")
    clock.advance(100 * DAY)
    pruned = {result.table: result.rows for result in store.db.prune()}
    assert pruned["tokens"] == 2
    assert [token.name for token in store.tokens.list(all=True).items] == ["active"]


def test_ensure_file_keeps_one_token(store: Corral, tmp_path: Path) -> None:
    path = tmp_path / "home" / "token"
    first_token = store.internal.tokens.ensure_file(path, name="daemon")
    assert path.stat().st_mode & 0o777 == 0o600
    assert store.internal.tokens.ensure_file(path, name="daemon") == first_token
    store.tokens.revoke("daemon")
    second_token = store.internal.tokens.ensure_file(path, name="daemon")
    assert second_token != first_token
    os.chmod(path, 0o644)  # another user may have read it
    third_token = store.internal.tokens.ensure_file(path, name="daemon")
    assert third_token != second_token
    with pytest.raises(Refused):
        store.internal.tokens.check(second_token)
    path.unlink()
    assert store.internal.tokens.ensure_file(path, name="daemon") != third_token
    assert [token.name for token in store.tokens.list().items] == ["daemon"]


def test_store_acts_as_the_given_actor(store: Corral) -> None:
    token_store = store.as_actor("token:script")
    letter = token_store.mail.put("agent:ada", 1)
    with token_store.transaction() as tx:
        tx.emit("letter", "read", letter.id)
    token_store.close()  # closing the view does not close the store
    store.mail.put("agent:ada", 2)
    events = store.events.after().items if store.db.engine == "sqlite" else []
    assert [event.actor for event in events] in (
        ["token:script", "token:script", "user:tester"],
        [],
    )
