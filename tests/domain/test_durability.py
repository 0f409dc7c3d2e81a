"""Durability: which commits wait for a sync to disk, and that critical operations always do."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import corral
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.api.operation import Resource, write
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter
from corral.kernel.clock import HOUR, ManualClock
from tests.support.fake_channels import Chat
from tests.support.home import wait_until
from tests.support.store import rows
from tests.support.threads import Racer

pytestmark = pytest.mark.usefixtures("fake_channels")

USAGE = UsageFact(model="gpt-5", input=10, output=5)


class Disk(apsw.VFS):
    """The VFS of SQLite, which counts the syncs of write-ahead logs."""

    def __init__(self) -> None:
        self.base = apsw.vfs_names()[0]
        self.syncs = 0
        super().__init__("counting-vfs", self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._is_log = str(name.filename() if hasattr(name, "filename") else name).endswith("-wal")
        super().__init__(disk.base, name, flags)

    def xSync(self, flags: int) -> None:
        self._disk.syncs += self._is_log
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    counting_disk = Disk()
    yield counting_disk
    counting_disk.unregister()


@pytest.fixture
def sqlite_store(disk: Disk, sqlite_template: Path, tmp_path: Path) -> Iterator[Corral]:
    """A SQLite store with durability `normal`, the default of a new store."""
    shutil.copy(sqlite_template, tmp_path / "corral.db")
    with corral.open(tmp_path / "corral.db", clock=ManualClock(), actor="user:tester") as store:
        store.mail.put("queue:q", "the first commit may sync")
        yield store


def is_synced(disk: Disk, call: Callable[[], object]) -> bool:
    before = disk.syncs
    call()
    return disk.syncs > before


def claim_letter(store: Corral) -> Letter:
    return store.mail.claim("queue:q", owner="me")[0]


def begin_delivery(store: Corral) -> Letter:
    return store.mail.begin_delivery(claim_letter(store))


def ask_question(store: Corral) -> str:
    return store.questions.ask("Deploy?", options=["yes", "no"], asker="agent:ada").id


def propose_decision(store: Corral) -> str:
    return store.decisions.record("Drop it", author="agent:ada", confirm=True).id


def queue_message(store: Corral) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send("hello", agent="ada", to="room")
    return chat


def answer_with_key(store: Corral, question: str) -> bytes:
    arguments = {"question": question, "answer": "yes", "by": "user:ann"}
    key = IdempotencyKey("tok_1", "k", "f")
    return call_with_key(store.questions, "answer", arguments, key=key, encode=msgspec.json.encode)


# For each operation: the preparation, and the call whose commit is observed.
CRITICAL_OPERATIONS: dict[str, tuple[Callable[[Corral], Any], Callable[[Corral, Any], object]]] = {
    "a charge": (lambda _: None, lambda store, _: store.charges.add(USAGE, run_id="run_1")),
    "a budget": (lambda _: None, lambda store, _: store.budgets.set("all", 1_000_000)),
    "an answer": (ask_question, lambda store, id: store.questions.answer(id, "yes", by="user:ann")),
    "an answer under a key": (ask_question, answer_with_key),
    "a confirmed decision": (
        propose_decision,
        lambda store, id: store.decisions.confirm(id, by="user:a"),
    ),
    "a rejected decision": (
        propose_decision,
        lambda store, id: store.decisions.reject(id, by="user:a"),
    ),
    "the begin of a delivery": (
        claim_letter,
        lambda store, letter: store.mail.begin_delivery(letter),
    ),
    "a resolved letter": (
        begin_delivery,
        lambda store, letter: store.mail.resolve(letter.id, delivered=True),
    ),
    "an inbound event": (lambda store: Chat(store), lambda _, chat: chat.says("hello")),
    "a delivery receipt": (queue_message, lambda _, chat: chat.deliver()),
    "a token": (lambda _: None, lambda store, _: store.tokens.create("ci")),
    "a revoked token": (
        lambda store: store.tokens.create("ci", ttl_ms=HOUR),
        lambda store, _: store.tokens.revoke("ci"),
    ),
}


@pytest.mark.parametrize("operation", CRITICAL_OPERATIONS)
def test_critical_operations_are_synced_in_every_store(
    sqlite_store: Corral, disk: Disk, operation: str
) -> None:
    prepare, call = CRITICAL_OPERATIONS[operation]
    prepared = prepare(sqlite_store)
    sqlite_store.mail.put("queue:other", "no sync is pending after this commit")
    assert is_synced(disk, lambda: call(sqlite_store, prepared))
    assert not is_synced(
        disk, lambda: sqlite_store.mail.put("queue:other", "later commits are not synced")
    )


def test_full_durability_syncs_every_commit(sqlite_store: Corral, disk: Disk) -> None:
    assert not is_synced(disk, lambda: sqlite_store.mail.put("queue:q", 1))
    sqlite_store.db.durability("full")
    assert is_synced(disk, lambda: sqlite_store.mail.put("queue:q", 2))
    with corral.open(sqlite_store.address) as other_store:
        assert is_synced(disk, lambda: other_store.mail.put("queue:q", 3))
    sqlite_store.db.durability("normal")
    assert not is_synced(disk, lambda: sqlite_store.mail.put("queue:q", 4))


def test_synced_write_does_not_join_an_unsynced_commit(sqlite_store: Corral, disk: Disk) -> None:
    racers: list[Racer[object]] = []

    def put_while_a_charge_waits(tx: Tx) -> None:
        mail.put(tx, "queue:q", 1)
        racers.append(Racer(lambda: sqlite_store.charges.add(USAGE, run_id="run_1")))
        queue = sqlite_store._database._queue
        wait_until(lambda: queue.waiting or None, "the charge waits in the queue")

    class SlowMail(Resource):
        put = write(put_while_a_charge_waits)

    def commit_both() -> None:
        SlowMail(sqlite_store._executor).put()
        racers[0].result()

    assert is_synced(disk, commit_both)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_postgres_sets_synchronous_commit_explicitly(store: Corral) -> None:
    """The test server disables synchronous commits by default."""
    assert rows(store, "SHOW synchronous_commit") == [("on",)]
