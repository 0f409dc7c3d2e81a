"""Clock corrections: accepted letters keep their order and are not delayed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest

import corral
from corral.api import Corral
from corral.db import store_clock
from corral.db.store_clock import CONFIRMED_AFTER
from corral.domain.mail import ops as mail
from corral.domain.mail.model import LetterDraft
from corral.kernel.clock import HOUR, MINUTE, SECOND, ManualClock, SystemClock
from corral.kernel.errors import Conflict
from corral.services import mail as mail_service
from corral.services.wait import MIN_SLEEP
from tests.support.processes import Child

T = TypeVar("T")
TRUE_TIME = 1_800_000_000_000


class ShiftedClock:
    """The system time and the machine's uptime, as the test sets them."""

    def __init__(self) -> None:
        self.now = TRUE_TIME
        self.steady = HOUR

    def advance(self, ms: int) -> None:
        """Let time pass on all clocks."""
        self.now += ms
        self.steady += ms


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    clock = ShiftedClock()
    monkeypatch.setattr(SystemClock, "now", lambda _: clock.now)
    monkeypatch.setattr(store_clock, "read_steady_ms", lambda: clock.steady)
    return clock


@pytest.fixture
def stores(system: ShiftedClock, url: str) -> Iterator[tuple[Corral, Corral]]:
    """Two users of one store, with the system clock."""
    with corral.open(url, actor="user:a") as first, corral.open(url, actor="user:b") as second:
        yield first, second


@pytest.mark.parametrize("shift", [20 * SECOND, -20 * SECOND])
def test_letters_keep_their_order_and_are_available_at_once(
    system: ShiftedClock, stores: tuple[Corral, Corral], shift: int
) -> None:
    first, second = stores
    first.mail.put("agent:a", "before")
    system.now += shift
    first.mail.put("agent:a", "during the shift")
    system.now -= shift
    second.mail.put("agent:a", "after")
    bodies = []
    for worker in (second, first, second):
        # Two measurements of the server's time may differ by a millisecond.
        (letter,) = worker.mail.claim("agent:a", owner="w", wait_ms=SECOND)
        bodies.append(letter.body)
        worker.mail.ack(letter)
    assert bodies == ["before", "during the shift", "after"]


def test_lease_survives_correction_of_a_clock_that_ran_ahead(
    system: ShiftedClock, stores: tuple[Corral, Corral]
) -> None:
    first, second = stores
    first.mail.put("agent:a", "work")
    system.now += 20 * SECOND
    (letter,) = first.mail.claim("agent:a", owner="a", lease_ms=5 * SECOND)
    system.now -= 20 * SECOND
    assert second.mail.claim("agent:a", owner="b") == []
    first.mail.renew(letter, lease_ms=5 * SECOND)
    first.mail.ack(letter)


def test_store_time_advances_once_the_clock_catches_up(
    system: ShiftedClock, tmp_path: Path
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        assert store.now() == TRUE_TIME
        assert store.mail.put("queue:work", 2).created_at == TRUE_TIME
        system.now += 20 * SECOND + 7
        assert store.now() == TRUE_TIME + 7


def test_large_backward_jump_is_followed_after_a_while(
    system: ShiftedClock, tmp_path: Path
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
        system.now -= HOUR
        store.timers.set("queue:work", "soon", delay_ms=5 * SECOND)
        system.advance(6 * SECOND)
        store.schedules.fire_due()
        assert "soon" in [letter.body for letter in store.mail.list().items]
        system.advance(CONFIRMED_AFTER)
        assert store.mail.put("queue:work", 2).created_at == system.now


@pytest.mark.parametrize("shift", [24 * HOUR, -24 * HOUR])
def test_one_clock_a_day_off_affects_no_lease_or_schedule(
    system: ShiftedClock, tmp_path: Path, shift: int
) -> None:
    """Regression test: the lease lasted a day, and the schedule was silent for a day."""
    path = tmp_path / "corral.db"

    def run_with_shifted_clock(work: Callable[[Corral], T]) -> T:
        system.now += shift
        try:
            with corral.open(path, actor="user:wrong") as store:
                return work(store)
        finally:
            system.now -= shift

    with corral.open(path) as store:
        store.mail.put("agent:a", "work")
        schedule = store.schedules.create("queue:ticks", "tick", every_ms=5 * SECOND)
        run_with_shifted_clock(
            lambda other: other.mail.claim("agent:a", owner="b", lease_ms=MINUTE)
        )
        for _ in range(30):  # longer than a minute, beside a writer with a correct clock
            system.advance(5 * SECOND)
            run_with_shifted_clock(lambda other: other.schedules.fire_due())
            store.mail.put("queue:other", "x")
            assert abs(store.now() - system.now) <= SECOND
        planned = store.schedules.get(schedule.id).next_at
        assert planned is not None
        assert planned <= system.now + 5 * SECOND
        assert len(store.mail.claim("agent:a", owner="c")) == 1, "the lease has expired"


def test_clock_corrected_by_a_day_is_followed_after_a_minute(
    system: ShiftedClock, tmp_path: Path
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
        system.now += 24 * HOUR
        first = store.mail.put("queue:work", 2).created_at
        assert first == TRUE_TIME
        system.advance(CONFIRMED_AFTER + SECOND)
        assert store.mail.put("queue:work", 3).created_at == system.now
        assert store.now() == system.now


def test_machine_that_was_off_for_a_day_has_the_right_time_at_once(
    system: ShiftedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
    monkeypatch.setattr(store_clock, "_read_boot_number", lambda: 7)  # another boot of the machine
    system.now += 24 * HOUR
    with corral.open(tmp_path / "corral.db") as store:
        assert store.mail.put("queue:work", 2).created_at == system.now


def test_reader_sees_the_time_of_the_writers(system: ShiftedClock, tmp_path: Path) -> None:
    with corral.open(tmp_path / "corral.db") as writer:
        system.now += 20 * SECOND
        writer.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        with corral.open(tmp_path / "corral.db") as reader:
            assert reader.now() == TRUE_TIME + 20 * SECOND


def test_reader_that_opened_first_sees_the_time_of_later_writers(
    system: ShiftedClock, tmp_path: Path
) -> None:
    path = tmp_path / "corral.db"
    corral.open(path).close()
    Path(f"{path}-writers-queue").unlink()  # as if only the store file was copied
    with corral.open(path) as reader, corral.open(path) as writer:
        assert reader.now() == TRUE_TIME
        system.now += 20 * SECOND
        writer.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        assert reader.now() == TRUE_TIME + 20 * SECOND


def test_waiting_while_time_stands_still_does_not_spin(clock: ManualClock, url: str) -> None:
    with corral.open(url, clock=clock) as store:
        store.mail.put("queue:work", 1, due_at=clock.now() + 1)
        with patch.object(mail_service, "next_due", return_value=clock.now() + 1) as next_due:
            assert store.mail.claim("queue:work", owner="w", wait_ms=200) == []
        assert 0 < next_due.call_count <= 200 / (MIN_SLEEP * SECOND)


def test_other_processes_and_later_handles_see_the_store_time(
    system: ShiftedClock, tmp_path: Path
) -> None:
    path = tmp_path / "corral.db"

    def put_letter() -> None:
        with corral.open(path) as store:
            store.mail.put("agent:a", "first")

    system.now += 20 * SECOND
    with Child(put_letter) as child:
        child.result()
    system.now -= 20 * SECOND
    with corral.open(path) as store:
        store.mail.put("agent:a", "second")
        first, second = store.mail.claim("agent:a", owner="w", limit=2)
        assert [first.body, second.body] == ["first", "second"]


def open_with_clock(engine: str, url: str, clock: ManualClock) -> Corral:
    """On PostgreSQL each handle measures the server's time; on SQLite all use the system's."""
    return corral.open(url, clock=clock if engine == "postgres" else None)


def test_letters_of_slightly_different_clocks_keep_their_order(
    system: ShiftedClock, engine: str, url: str
) -> None:
    """The largest difference between two measurements of the server's time."""
    ahead, behind = ManualClock(TRUE_TIME + 200), ManualClock(TRUE_TIME)
    with (
        open_with_clock(engine, url, ahead) as first,
        open_with_clock(engine, url, behind) as second,
    ):
        first.mail.put("agent:a", 1, due_at=TRUE_TIME + 150)
        system.now += 200
        first.mail.put("agent:a", 2)
        system.now -= 200
        later = second.mail.put("agent:a", 3)
        assert later == second.mail.get(later.id), "it reports its position"
        second.mail.put("agent:a", 4, due_at=TRUE_TIME + 5 * SECOND)
        system.now += SECOND
        ahead.advance(SECOND)
        behind.advance(SECOND)
        letters = [first.mail.claim("agent:a", owner="w")[0] for _ in range(2)]
        assert [letter.body for letter in letters] == [1, 2]
        for letter in letters:
            first.mail.ack(letter)
        behind.at = TRUE_TIME  # earlier letters are gone, and it is still queued behind the third
        system.now -= SECOND
        second.mail.put("agent:a", 5)
        behind.advance(SECOND)
        system.now += SECOND
        assert [item.body for item in second.mail.claim("agent:a", owner="w", limit=9)] == [3, 5]


def test_letters_put_in_bulk_keep_their_order(system: ShiftedClock, engine: str, url: str) -> None:
    ahead, behind = ManualClock(TRUE_TIME + 200), ManualClock(TRUE_TIME)
    mailboxes = ["agent:a", "agent:b"]
    with (
        open_with_clock(engine, url, ahead) as first,
        open_with_clock(engine, url, behind) as second,
    ):
        second.mail.put("agent:b", "before")
        system.now += 200
        with first.transaction() as tx:
            mail.broadcast(tx, mailboxes, "first", key="1")
        system.now -= 200
        with second.transaction() as tx:
            mail.broadcast(tx, mailboxes, "second", key="2")
            mail.put_many(tx, [LetterDraft("agent:b", "third", "3")])
        system.now += SECOND
        behind.advance(SECOND)
        for mailbox, expected in (
            ("agent:a", ["first", "second"]),
            ("agent:b", ["before", "first", "second", "third"]),
        ):
            letters = second.mail.claim(mailbox, owner="w", limit=9)
            assert [letter.body for letter in letters] == expected


def test_stale_owner_stays_stale_after_clock_changes(system: ShiftedClock, tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    with corral.open(path) as first, corral.open(path) as second:
        first.mail.put("agent:a", "work")
        (early,) = first.mail.claim("agent:a", owner="a", lease_ms=5 * SECOND)
        system.now += MINUTE // 2
        (late,) = second.mail.claim("agent:a", owner="b", lease_ms=5 * SECOND)
        system.now -= MINUTE // 2
        with pytest.raises(Conflict):
            first.mail.ack(early)
        second.mail.ack(late)
