"""Clocks that are wrong for a while, and are set right: what was accepted keeps its order, and
waits for nobody's clock."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import corral
from corral.db.store_clock import LONGEST_HELD
from corral.kernel.clock import HOUR, MINUTE, SECOND, SetClock, SystemClock
from corral.kernel.errors import Conflict
from corral.library import Corral
from corral.library.mail import Mail
from corral.library.waiting import SOON
from corral.rooms.mail import ops as mail
from corral.rooms.mail.model import Draft
from tests.support.processes import Child

TRUE_TIME = 1_800_000_000_000


class Moved:
    """What the system says the time is."""

    def __init__(self) -> None:
        self.now = TRUE_TIME


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Moved:
    moved = Moved()
    monkeypatch.setattr(SystemClock, "now", lambda _: moved.now)
    return moved


@pytest.fixture
def stores(system: Moved, url: str) -> Iterator[tuple[Corral, Corral]]:
    """Two of those who use one store, by the system's clock."""
    with corral.open(url, actor="user:a") as one, corral.open(url, actor="user:b") as two:
        yield one, two


@pytest.mark.parametrize("wrong", [20 * SECOND, -20 * SECOND])
def test_letters_keep_their_order_and_are_given_out_at_once(
    system: Moved, stores: tuple[Corral, Corral], wrong: int
) -> None:
    one, two = stores
    one.mail.put("agent:a", "before")
    system.now += wrong
    one.mail.put("agent:a", "while it was wrong")
    system.now -= wrong
    two.mail.put("agent:a", "after")
    got = []
    for worker in (two, one, two):
        # Two who have each measured the server's time may differ by a millisecond.
        (letter,) = worker.mail.claim("agent:a", owner="w", wait_ms=SECOND)
        got.append(letter.body)
        worker.mail.ack(letter)
    assert got == ["before", "while it was wrong", "after"]


def test_a_lease_is_not_over_because_one_clock_is_ahead_and_another_was_set_right(
    system: Moved, stores: tuple[Corral, Corral]
) -> None:
    one, two = stores
    one.mail.put("agent:a", "work")
    system.now += 20 * SECOND
    (letter,) = one.mail.claim("agent:a", owner="a", lease_ms=5 * SECOND)
    system.now -= 20 * SECOND
    assert two.mail.claim("agent:a", owner="b") == []
    one.mail.renew(letter, lease_ms=5 * SECOND)
    one.mail.ack(letter)


def test_the_time_of_a_store_goes_on_once_the_clock_is_where_it_was(
    system: Moved, tmp_path: Path
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        assert store.now() == TRUE_TIME
        assert store.mail.put("queue:work", 2).created_at == TRUE_TIME
        system.now += 20 * SECOND + 7
        assert store.now() == TRUE_TIME + 7


def test_a_clock_that_was_far_ahead_is_not_waited_for(system: Moved, tmp_path: Path) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", 1)
        system.now -= LONGEST_HELD + 1
        assert store.mail.put("queue:work", 2).created_at == system.now
        system.now += HOUR
        store.mail.put("queue:work", 3)
        system.now -= HOUR
        store.timers.set("queue:work", "soon", delay_ms=5 * SECOND)
        system.now += 6 * SECOND
        store.schedules.fire_due()
        assert "soon" in [letter.body for letter in store.mail.list().items]


def test_who_only_reads_sees_the_time_of_those_who_write(system: Moved, tmp_path: Path) -> None:
    with corral.open(tmp_path / "corral.db") as writer:
        system.now += 20 * SECOND
        writer.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        with corral.open(tmp_path / "corral.db") as reader:
            assert reader.now() == TRUE_TIME + 20 * SECOND


def test_who_opened_before_anybody_wrote_sees_it_too(system: Moved, tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    corral.open(path).close()
    Path(f"{path}-line-door").unlink()  # as where the store alone was copied
    with corral.open(path) as reader, corral.open(path) as writer:
        assert reader.now() == TRUE_TIME
        system.now += 20 * SECOND
        writer.mail.put("queue:work", 1)
        system.now -= 20 * SECOND
        assert reader.now() == TRUE_TIME + 20 * SECOND


def test_whoever_waits_while_the_time_stands_still_is_not_busy(clock: SetClock, url: str) -> None:
    with corral.open(url, clock=clock) as store:
        store.mail.put("queue:work", 1, due_at=clock.now() + 1)
        with patch.object(Mail, "next_due", return_value=clock.now() + 1) as look:
            assert store.mail.claim("queue:work", owner="w", wait_ms=200) == []
        assert 0 < look.call_count <= 200 / (SOON * SECOND)


def test_other_processes_see_it_and_the_next_who_opens(system: Moved, tmp_path: Path) -> None:
    path = tmp_path / "corral.db"

    def ahead() -> None:
        with corral.open(path) as store:
            store.mail.put("agent:a", "first")

    system.now += 20 * SECOND
    with Child(ahead) as child:
        child.result(30)
    system.now -= 20 * SECOND
    with corral.open(path) as store:
        store.mail.put("agent:a", "second")
        first, second = store.mail.claim("agent:a", owner="w", limit=2)
        assert [first.body, second.body] == ["first", "second"]


def open_by(engine: str, url: str, clock: SetClock) -> Corral:
    """On PostgreSQL each measures the server's time for itself; SQLite's have the system's."""
    return corral.open(url, clock=clock if engine == "postgres" else None)


def test_letters_of_two_whose_time_differs_a_little_keep_their_order(
    system: Moved, engine: str, url: str
) -> None:
    """As far apart as two can be who have each measured the server's time."""
    ahead, behind = SetClock(TRUE_TIME + 200), SetClock(TRUE_TIME)
    with open_by(engine, url, ahead) as one, open_by(engine, url, behind) as two:
        one.mail.put("agent:a", 1, due_at=TRUE_TIME + 150)
        system.now += 200
        one.mail.put("agent:a", 2)
        system.now -= 200
        later = two.mail.put("agent:a", 3)
        assert later == two.mail.get(later.id), "it says where it stands"
        two.mail.put("agent:a", 4, due_at=TRUE_TIME + 5 * SECOND)
        system.now += SECOND
        ahead.advance(SECOND)
        behind.advance(SECOND)
        got = [one.mail.claim("agent:a", owner="w")[0] for _ in range(2)]
        assert [letter.body for letter in got] == [1, 2]
        for letter in got:
            one.mail.ack(letter)
        behind.at = TRUE_TIME  # those before it are gone, and it still goes behind the third
        system.now -= SECOND
        two.mail.put("agent:a", 5)
        behind.advance(SECOND)
        system.now += SECOND
        assert [each.body for each in two.mail.claim("agent:a", owner="w", limit=9)] == [3, 5]


def test_what_is_put_for_many_keeps_its_place_too(system: Moved, engine: str, url: str) -> None:
    ahead, behind = SetClock(TRUE_TIME + 200), SetClock(TRUE_TIME)
    both = ["agent:a", "agent:b"]
    with open_by(engine, url, ahead) as one, open_by(engine, url, behind) as two:
        two.mail.put("agent:b", "before")
        system.now += 200
        with one.transaction() as tx:
            mail.put_all(tx, both, "first", key="1")
        system.now -= 200
        with two.transaction() as tx:
            mail.put_all(tx, both, "second", key="2")
            mail.put_each(tx, [Draft("agent:b", "third", "3")])
        system.now += SECOND
        behind.advance(SECOND)
        for mailbox, wanted in (
            ("agent:a", ["first", "second"]),
            ("agent:b", ["before", "first", "second", "third"]),
        ):
            letters = two.mail.claim(mailbox, owner="w", limit=9)
            assert [letter.body for letter in letters] == wanted


def test_a_late_owner_stays_late_whatever_the_clock_does(system: Moved, tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    with corral.open(path) as one, corral.open(path) as two:
        one.mail.put("agent:a", "work")
        (early,) = one.mail.claim("agent:a", owner="a", lease_ms=5 * SECOND)
        system.now += MINUTE // 2
        (late,) = two.mail.claim("agent:a", owner="b", lease_ms=5 * SECOND)
        system.now -= MINUTE // 2
        with pytest.raises(Conflict):
            one.mail.ack(early)
        two.mail.ack(late)
