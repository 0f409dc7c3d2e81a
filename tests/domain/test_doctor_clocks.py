"""What doctor says of clocks that were wrong, on both engines."""

import pytest

import corral
from corral.api.doctor import examine
from corral.db.types import Finding
from corral.kernel.clock import DAY, SECOND, ManualClock, SystemClock


def found(url: str, *, fix: bool = False) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(url, fix=fix)}


@pytest.fixture
def ahead() -> ManualClock:
    return ManualClock(SystemClock().now() + 3 * DAY)


def test_correct_clock_is_reported_as_ok(url: str) -> None:
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        store.mail.claim("agent:a", owner="w")
        store.schedules.create("queue:ticks", "tick", every_ms=5 * SECOND)
    told = found(url)
    assert told["clock"].state == "ok"
    assert "leases" not in told
    assert "schedules" not in told


def test_future_timestamps_are_reported(url: str, ahead: ManualClock) -> None:
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        schedule = store.schedules.create("queue:ticks", "tick", every_ms=5 * SECOND)
    with corral.open(url, clock=ahead) as store:
        store.mail.claim("agent:a", owner="w")
        store.schedules.fire_due()
    told = found(url)
    assert told["clock"].state == "warning"
    assert told["leases"].state == "warning"
    assert told["schedules"].state == "warning"
    assert schedule.id in told["schedules"].message
    assert found(url, fix=True)["schedules"].state == "ok"
    assert "schedules" not in found(url)
    with corral.open(url) as store:
        planned = store.schedules.get(schedule.id).next_at
        assert planned is not None
        assert planned <= store.now() + 5 * SECOND


def test_clock_of_one_process_does_not_change_the_store_clock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SystemClock.now
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        before = store.now()
        monkeypatch.setattr(SystemClock, "now", lambda clock: real(clock) + DAY)
        with corral.open(url) as wrong:
            (letter,) = wrong.mail.claim("agent:a", owner="w", lease_ms=30 * SECOND)
            assert letter.due_at < before + 10 * 60 * SECOND
        monkeypatch.undo()
