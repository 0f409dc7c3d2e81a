"""Who waits is woken by another process's commit, and not by the slow look behind it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.db import wakeups
from corral.library import mail as library_mail
from corral.rooms.mail import ops as mail
from tests.support.processes import Child, Signal
from tests.support.threads import Racer

LETTERS = 15
PROMPT = 1.0
NEVER = 30.0


@pytest.fixture(autouse=True)
def _no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow looks that catch a missed wake-up would hide that it was missed."""
    from corral.db.notices import NotifyListener

    monkeypatch.setattr(wakeups, "SAFETY_POLL", NEVER)
    monkeypatch.setattr(NotifyListener, "SAFETY_POLL", NEVER)
    monkeypatch.setattr(library_mail, "LONGEST_SLEEP", NEVER)


def send_slowly(url: str, mailbox: str = "agent:ada") -> Callable[[], None]:
    """Another process's work: letters, far enough apart for the receiver to fall asleep."""

    def send() -> None:
        with corral.open(url) as store:
            for _ in range(LETTERS):
                time.sleep(0.03)
                store.mail.put(mailbox, time.monotonic())

    return send


def check_prompt(latencies: list[float]) -> None:
    assert len(latencies) == LETTERS
    latencies.sort()
    print(
        f"from commit to pick-up: median {latencies[LETTERS // 2] * 1_000:.1f} ms, "
        f"longest {latencies[-1] * 1_000:.1f} ms"
    )
    assert latencies[-1] < PROMPT


def claim_all(url: str) -> list[float]:
    latencies = []
    with corral.open(url) as store:
        while len(latencies) < LETTERS:
            letters = store.mail.claim("agent:ada", owner="me", wait_ms=5_000)
            assert letters, "it waited in vain"
            latencies += [time.monotonic() - letter.body for letter in letters]
            for letter in letters:
                store.mail.ack(letter)
    return latencies


def test_a_claim_that_waits_gets_a_letter_as_soon_as_another_process_put_it(url: str) -> None:
    with Child(send_slowly(url)) as sender:
        check_prompt(claim_all(url))
        sender.result()


def test_a_follower_gets_an_event_as_soon_as_another_process_made_it(url: str) -> None:
    latencies = []
    with Child(send_slowly(url)) as sender, corral.open(url) as store:
        for event in store.events.follow("0-0", timeout_ms=5_000):
            latencies.append(time.monotonic() - store.mail.get(event.subject).body)
            if len(latencies) == LETTERS:
                break
        sender.result()
    check_prompt(latencies)


def test_a_claim_that_waits_wakes_for_a_thread_of_its_own_process(url: str) -> None:
    with corral.open(url) as store:
        waiting = Racer(lambda: store.mail.claim("agent:ada", owner="me", wait_ms=5_000))
        time.sleep(0.1)
        store.mail.put("agent:ada", time.monotonic())
        (letter,) = waiting.result()
        assert time.monotonic() - letter.body < PROMPT


def test_a_claim_that_waits_wakes_when_a_letter_that_was_put_for_later_is_due(url: str) -> None:
    with corral.open(url) as store:
        due = store.mail.put("agent:ada", 1).created_at + 300
        (first,) = store.mail.claim("agent:ada", owner="me")
        store.mail.ack(first)
        store.mail.put("agent:ada", 2, due_at=due)
        start = time.monotonic()
        (letter,) = store.mail.claim("agent:ada", owner="me", wait_ms=10_000)
        assert letter.body == 2
        assert time.monotonic() - start < PROMPT


def test_a_waiting_claim_of_an_ordered_mailbox_wakes_when_the_owner_before_it_is_done(
    url: str,
) -> None:
    ready, go = Signal(), Signal()

    def work() -> float:
        with corral.open(url) as store:
            go.wait()
            ready.send()
            (letter,) = store.mail.claim("agent:ada", owner="other", wait_ms=5_000)
            assert letter.body == "second"
            return time.monotonic()

    with Child(work) as child, corral.open(url) as store:
        store.mail.put("agent:ada", "first")
        store.mail.put("agent:ada", "second")
        (first,) = store.mail.claim("agent:ada", owner="me")
        go.send()
        ready.wait()
        time.sleep(0.2)
        store.mail.ack(first)
        acked = time.monotonic()
        assert child.result() - acked < PROMPT


class TestOnSqlite:
    """The log beside the file comes and goes, and not every machine tells of changes."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        url = f"sqlite:///{tmp_path}/corral.db"
        corral.open(url).close()
        return url

    def test_it_wakes_also_when_the_log_was_removed_and_made_anew(
        self, url: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "corral.db-wal"
        assert not log.exists(), "everybody had closed the store"

        def open_put_and_close() -> None:
            for _ in range(LETTERS):
                time.sleep(0.03)
                # Each time by an opening of its own, which removes the log when it is the last.
                with corral.open(url) as store:
                    store.mail.put("agent:ada", time.monotonic())

        with Child(open_put_and_close) as sender:
            check_prompt(claim_all(url))
            sender.result()

    def test_it_wakes_also_when_the_log_is_emptied_under_it(self, url: str) -> None:
        def put_and_empty_the_log() -> None:
            with corral.open(url) as store:
                for _ in range(LETTERS):
                    time.sleep(0.03)
                    store.mail.put("agent:ada", time.monotonic())
                    store._database._shared.writer.run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        with Child(put_and_empty_the_log) as sender:
            check_prompt(claim_all(url))
            sender.result()

    def test_it_wakes_also_where_the_kernel_does_not_tell_of_changes(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_watch(path: Path) -> None:
            raise OSError("no more watches")

        monkeypatch.setattr(wakeups, "_FileWatch", no_watch)
        with Child(send_slowly(url)) as sender:
            check_prompt(claim_all(url))
            sender.result()

    def test_a_hundred_waits_leave_no_file_open(self, url: str) -> None:
        with corral.open(url) as store:
            store.mail.claim("agent:ada", owner="me", wait_ms=1)
            before = len(list(Path("/dev/fd").iterdir()))
            for _ in range(100):
                store.mail.claim("agent:ada", owner="me", wait_ms=1)
            assert len(list(Path("/dev/fd").iterdir())) <= before


def test_a_transaction_of_several_rooms_wakes_too(url: str) -> None:
    def put() -> None:
        with corral.open(url) as store:
            time.sleep(0.2)
            with store.transaction() as tx:
                mail.put(tx, "agent:ada", time.monotonic())

    with Child(put) as child, corral.open(url) as store:
        (letter,) = store.mail.claim("agent:ada", owner="me", wait_ms=5_000)
        assert time.monotonic() - letter.body < PROMPT
        child.result()
