"""`corral doctor` and clocks: future leases, schedules and timestamps."""

import pytest

import corral
from corral.api.doctor import examine
from corral.db.types import Finding
from corral.kernel.clock import DAY, SECOND, ManualClock, SystemClock


def examine_by_check(url: str, *, fix: bool = False) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(url, fix=fix)}


@pytest.fixture
def clock_ahead() -> ManualClock:
    return ManualClock(SystemClock().now() + 3 * DAY)


def test_correct_clock_is_reported_as_ok(url: str) -> None:
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        store.mail.claim("agent:a", owner="w")
        store.schedules.create("queue:ticks", "tick", every_ms=5 * SECOND)
    findings = examine_by_check(url)
    assert findings["clock"].state == "ok"
    assert "leases" not in findings
    assert "schedules" not in findings


def test_future_timestamps_are_reported(url: str, clock_ahead: ManualClock) -> None:
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        schedule = store.schedules.create("queue:ticks", "tick", every_ms=5 * SECOND)
    with corral.open(url, clock=clock_ahead) as store:
        store.mail.claim("agent:a", owner="w")
        store.schedules.fire_due()
    findings = examine_by_check(url)
    assert findings["clock"].state == "warning"
    assert findings["leases"].state == "warning"
    assert findings["schedules"].state == "warning"
    assert schedule.id in findings["schedules"].message
    assert examine_by_check(url, fix=True)["schedules"].state == "ok"
    assert "schedules" not in examine_by_check(url)
    with corral.open(url) as store:
        planned = store.schedules.get(schedule.id).next_at
        assert planned is not None
        assert planned <= store.now() + 5 * SECOND


def test_clock_of_one_process_does_not_change_the_store_clock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_now = SystemClock.now
    with corral.open(url) as store:
        store.mail.put("agent:a", "work")
        before = store.now()
        monkeypatch.setattr(SystemClock, "now", lambda clock: system_now(clock) + DAY)
        with corral.open(url) as wrong_store:
            (letter,) = wrong_store.mail.claim("agent:a", owner="w", lease_ms=30 * SECOND)
            assert letter.due_at < before + 10 * 60 * SECOND
        monkeypatch.undo()
