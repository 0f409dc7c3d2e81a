"""Crashes of calls with an idempotency key: each runs at most once."""

from pathlib import Path

import msgspec

from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.kernel.errors import Conflict
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit


def put(store: Corral, key: str) -> bytes:
    arguments = {"mailbox": "queue:a", "body": key}
    return call_with_key(
        store.mail,
        "put",
        arguments,
        key=IdempotencyKey("tok", key, key),
        encode=msgspec.json.encode,
    )


def test_call_with_a_key_runs_once_with_the_same_response(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def call(store: Corral, world: World) -> None:
        for key in ("k1", "k2"):
            world.record(msgspec.json.decode(put(store, key))["id"])

    def check(store: Corral, world: World) -> None:
        letters = store.mail.list(mailbox="queue:a").items
        assert [letter.body for letter in letters] == ["k1", "k2"]
        assert {*world.records} == {letter.id for letter in letters}

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=call, recover=call, check=check))


def test_interrupted_composed_call_is_not_repeated_after_a_crash(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def prepare(store: Corral, world: World) -> None:
        world.folder.mkdir()
        world.record(store.projects.register(world.folder).id)

    def delete(store: Corral, world: World) -> None:
        key, arguments = IdempotencyKey("tok", "k", "delete"), {"id": world.records[0]}
        call_with_key(store.projects, "delete", arguments, key=key, encode=msgspec.json.encode)
        world.record("deleted")

    def delete_again(store: Corral, world: World) -> None:
        try:
            delete(store, world)
        except Conflict:
            world.record("unknown")

    def check(store: Corral, world: World) -> None:
        assert world.records[-1] in ("deleted", "unknown")
        assert world.records[-1] == "unknown" or store.projects.list().items == []

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=delete, recover=delete_again, check=check),
    )
