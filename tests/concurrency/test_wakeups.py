"""A commit of another process wakes waiting callers, without the help of periodic polls."""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import corral
from corral.db import wakeups
from corral.domain.mail import ops as mail
from tests.support.listeners import HOUR, call_before_waits, disable_safety_polls
from tests.support.processes import Child, Signal
from tests.support.threads import Racer

LETTERS = 15
UNTIL_WOKEN_MS = int(HOUR * 1_000)


@pytest.fixture(autouse=True)
def _no_safety_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Periodic polls would hide a missed wake-up."""
    disable_safety_polls(monkeypatch)


def make_slow_sender(url: str, received: Signal) -> Callable[[], None]:
    """Return a function that puts letters slowly, so that the receiver waits each time.

    It puts the next letter only after the last one was received: the next commit would hide a
    missed wake-up.
    """

    def send() -> None:
        with corral.open(url) as store:
            for number in range(LETTERS):
                time.sleep(0.03)
                store.mail.put("agent:ada", number)
                received.wait()

    return send


def claim_all(url: str, received: Signal) -> None:
    with corral.open(url) as store:
        for number in range(LETTERS):
            (letter,) = store.mail.claim("agent:ada", owner="me", wait_ms=UNTIL_WOKEN_MS)
            assert letter.body == number
            store.mail.ack(letter)
            received.send()


def test_waiting_claim_wakes_for_a_put_of_another_process(url: str) -> None:
    received = Signal()
    with Child(make_slow_sender(url, received)) as sender:
        Racer(lambda: claim_all(url, received)).result()
        sender.result()


def test_follower_wakes_for_an_event_of_another_process(url: str) -> None:
    received = Signal()

    def follow() -> None:
        with corral.open(url) as store:
            events = store.events.follow("0-0", timeout_ms=UNTIL_WOKEN_MS)
            for _ in range(LETTERS):
                assert next(events).verb == "put"
                received.send()
            events.close()

    with Child(make_slow_sender(url, received)) as sender:
        Racer(follow).result()
        sender.result()


def test_waiting_claim_wakes_for_a_put_of_another_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = Signal()
    call_before_waits(monkeypatch, asleep.send)
    with corral.open(url) as store:
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=UNTIL_WOKEN_MS))
        asleep.wait()
        store.mail.put("agent:ada", "hello")
        assert [letter.body for letter in waiting.result()] == ["hello"]


def test_waiting_claim_wakes_when_a_delayed_letter_is_due(url: str) -> None:
    with corral.open(url) as store:
        due = store.mail.put("agent:ada", 1).created_at + 300
        (first,) = store.mail.claim("agent:ada", owner="me")
        store.mail.ack(first)
        store.mail.put("agent:ada", 2, due_at=due)
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=UNTIL_WOKEN_MS))
        assert [letter.body for letter in waiting.result()] == [2]


def test_waiting_claim_wakes_when_an_ordered_mailbox_is_freed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, go = Signal(), Signal()

    def work() -> object:
        with corral.open(url) as store:
            go.wait()
            call_before_waits(monkeypatch, asleep.send)
            (letter,) = store.mail.claim("agent:ada", owner="other", wait_ms=UNTIL_WOKEN_MS)
            return letter.body

    with Child(work) as child, corral.open(url) as store:
        store.mail.put("agent:ada", "first")
        store.mail.put("agent:ada", "second")
        (first,) = store.mail.claim("agent:ada", owner="me")
        go.send()
        asleep.wait()
        store.mail.ack(first)
        assert child.result() == "second"


class TestOnSqlite:
    """The WAL file is created and deleted, and inotify may be unavailable."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        url = f"sqlite:///{tmp_path}/corral.db"
        corral.open(url).close()
        return url

    def test_wake_up_survives_recreation_of_the_wal(self, url: str, tmp_path: Path) -> None:
        wal = tmp_path / "corral.db-wal"
        assert not wal.exists(), "the store is closed"
        received = Signal()

        def open_put_and_close() -> None:
            for number in range(LETTERS):
                time.sleep(0.03)
                # Opens the store each time; the last close deletes the WAL.
                with corral.open(url) as store:
                    store.mail.put("agent:ada", number)
                received.wait()

        with Child(open_put_and_close) as sender:
            Racer(lambda: claim_all(url, received)).result()
            sender.result()

    def test_wake_up_survives_truncation_of_the_wal(self, url: str) -> None:
        received = Signal()

        def put_and_truncate_wal() -> None:
            with corral.open(url) as store:
                for number in range(LETTERS):
                    time.sleep(0.03)
                    store.mail.put("agent:ada", number)
                    store._database._shared.writer.run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    received.wait()

        with Child(put_and_truncate_wal) as sender:
            Racer(lambda: claim_all(url, received)).result()
            sender.result()

    def test_wake_up_works_without_inotify(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_watch(path: Path) -> None:
            raise OSError("no more watches")

        monkeypatch.setattr(wakeups, "_WalWatch", no_watch)
        received = Signal()
        with Child(make_slow_sender(url, received)) as sender:
            Racer(lambda: claim_all(url, received)).result()
            sender.result()

    def test_repeated_waits_leak_no_file_descriptors(self, url: str) -> None:
        with corral.open(url) as store:
            store.mail.claim("agent:ada", owner="me", wait_ms=1)
            before = len(list(Path("/dev/fd").iterdir()))
            for _ in range(100):
                store.mail.claim("agent:ada", owner="me", wait_ms=1)
            assert len(list(Path("/dev/fd").iterdir())) <= before


def test_explicit_transaction_wakes_a_waiting_claim(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = Signal()

    def put() -> None:
        with corral.open(url) as store:
            asleep.wait()
            with store.transaction() as tx:
                mail.put(tx, "agent:ada", "hello")

    with Child(put) as child, corral.open(url) as store:
        call_before_waits(monkeypatch, asleep.send)
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=UNTIL_WOKEN_MS))
        assert [letter.body for letter in waiting.result()] == ["hello"]
        child.result()


@pytest.fixture
def busy_descriptors() -> Iterator[None]:
    """Occupy all descriptors below 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    while descriptors[-1] < 1_024:
        descriptors.append(os.dup(descriptors[0]))
    yield
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="requires inotify")
@pytest.mark.usefixtures("busy_descriptors")
def test_watch_works_in_a_process_with_many_descriptors(tmp_path: Path) -> None:
    log = tmp_path / "store-wal"
    log.touch()
    watch = wakeups._WalWatch(tmp_path / "store")
    assert watch.fd >= 1_024
    assert not watch.wait(0)
    log.write_text("x")
    assert watch.wait(60)
    watch.close()
