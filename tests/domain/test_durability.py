"""What a power cut must not take: a commit waits for the disk where the store asks for that, and
where an operation does: receipts, money, approvals, tokens."""

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

USED = UsageFact(model="gpt-5", input=10, output=5)


class Disk(apsw.VFS):
    """SQLite's own way to the disk, which tells of each time that it waits for a log."""

    def __init__(self) -> None:
        self.base = apsw.vfs_names()[0]
        self.waits = 0
        super().__init__("a disk that counts", self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._is_log = str(name.filename() if hasattr(name, "filename") else name).endswith("-wal")
        super().__init__(disk.base, name, flags)

    def xSync(self, flags: int) -> None:
        self._disk.waits += self._is_log
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


@pytest.fixture
def filed(disk: Disk, sqlite_template: Path, tmp_path: Path) -> Iterator[Corral]:
    """A SQLite store at `normal`, as every new one is."""
    shutil.copy(sqlite_template, tmp_path / "corral.db")
    with corral.open(tmp_path / "corral.db", clock=ManualClock(), actor="user:tester") as store:
        store.mail.put("queue:q", "what comes first may have to wait")
        yield store


def waited(disk: Disk, call: Callable[[], object]) -> bool:
    before = disk.waits
    call()
    return disk.waits > before


def out(store: Corral) -> Letter:
    return store.mail.claim("queue:q", owner="me")[0]


def unconfirmed(store: Corral) -> Letter:
    return store.mail.begin_delivery(out(store))


def asked(store: Corral) -> str:
    return store.questions.ask("Deploy?", options=["yes", "no"], asker="agent:ada").id


def proposed(store: Corral) -> str:
    return store.decisions.record("Drop it", author="agent:ada", confirm=True).id


def queued(store: Corral) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send("hello", agent="ada", to="room")
    return chat


def under_a_key(store: Corral, question: str) -> bytes:
    given = {"question": question, "answer": "yes", "by": "user:ann"}
    key = IdempotencyKey("tok_1", "k", "f")
    return call_with_key(store.questions, "answer", given, key=key, encode=msgspec.json.encode)


# What each needs first, and what is then watched.
ASKS: dict[str, tuple[Callable[[Corral], Any], Callable[[Corral, Any], object]]] = {
    "a charge": (lambda _: None, lambda store, _: store.charges.add(USED, run_id="run_1")),
    "a budget": (lambda _: None, lambda store, _: store.budgets.set("all", 1_000_000)),
    "an answer": (asked, lambda store, id: store.questions.answer(id, "yes", by="user:ann")),
    "an answer under a key": (asked, under_a_key),
    "a yes to a decision": (proposed, lambda store, id: store.decisions.confirm(id, by="user:a")),
    "a no to a decision": (proposed, lambda store, id: store.decisions.reject(id, by="user:a")),
    "that an act begins": (out, lambda store, letter: store.mail.begin_delivery(letter)),
    "a resolved letter": (unconfirmed, lambda store, it: store.mail.resolve(it.id, delivered=True)),
    "a platform's event": (lambda store: Chat(store), lambda _, chat: chat.says("hello")),
    "a platform's receipt": (queued, lambda _, chat: chat.deliver()),
    "a token": (lambda _: None, lambda store, _: store.tokens.create("ci")),
    "a token's end": (
        lambda store: store.tokens.create("ci", ttl_ms=HOUR),
        lambda store, _: store.tokens.revoke("ci"),
    ),
}


@pytest.mark.parametrize("what", ASKS)
def test_critical_operations_are_synced_in_every_store(
    filed: Corral, disk: Disk, what: str
) -> None:
    prepare, call = ASKS[what]
    prepared = prepare(filed)
    filed.mail.put("queue:other", "so that nothing is left to be waited for")
    assert waited(disk, lambda: call(filed, prepared))
    assert not waited(disk, lambda: filed.mail.put("queue:other", "and only that"))


def test_full_durability_syncs_every_commit(filed: Corral, disk: Disk) -> None:
    assert not waited(disk, lambda: filed.mail.put("queue:q", 1))
    filed.db.durability("full")
    assert waited(disk, lambda: filed.mail.put("queue:q", 2))
    with corral.open(filed.address) as other:
        assert waited(disk, lambda: other.mail.put("queue:q", 3))
    filed.db.durability("normal")
    assert not waited(disk, lambda: filed.mail.put("queue:q", 4))


def test_synced_write_does_not_join_an_unsynced_commit(filed: Corral, disk: Disk) -> None:
    racers: list[Racer[object]] = []

    def put_while_another_comes(tx: Tx) -> None:
        mail.put(tx, "queue:q", 1)
        racers.append(Racer(lambda: filed.charges.add(USED, run_id="run_1")))
        line = filed._database._queue
        wait_until(lambda: line.waiting or None, "it stands in line behind this")

    class Slow(Resource):
        put = write(put_while_another_comes)

    def both() -> None:
        Slow(filed._database).put()
        racers[0].result()

    assert waited(disk, both)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_postgres_sets_synchronous_commit_explicitly(store: Corral) -> None:
    """The server of these tests is told at its start not to wait."""
    assert rows(store, "SHOW synchronous_commit") == [("on",)]
