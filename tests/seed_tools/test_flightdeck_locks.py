"""Behaviour of locks that users of Flightdeck rely on."""

import subprocess
from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.clock import MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held
from tests.support.run_factories import running
from tests.support.store import raises_without_change


def test_lock_conflict_renewal_and_expiry(
    store: Corral, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 5: conflicts name holder and expiry, and heartbeats renew the lock.

    An expired lock goes to the next waiter, who is notified. A late release or commit is rejected.
    """
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "src").mkdir()
    project = store.projects.register(tmp_path)
    run = running(store)
    first = store.locks.acquire(project.id, "src/*", "x", run=run.id)

    with raises_without_change(store, Held) as caught:
        store.locks.acquire(project.id, "./src/a.py", "y")
    assert caught.value.details["owner"] == "agent:x"
    assert caught.value.details["until"] == clock.now() + 5 * MINUTE

    for _ in range(20):  # heartbeats of the run renew the lock beyond its five minutes
        clock.advance(30 * SECOND)
        run = store.internal.runs.heartbeat(run, output_bytes=0)
    assert store.locks.holders(project.id, "src/a.py")[0].id == first.id

    second = store.locks.request(project.id, "./src/a.py", "y")
    assert second.state == "waiting"
    clock.advance(5 * MINUTE)  # no heartbeats: the lock expires
    store.internal.locks.expire_due()
    granted = store.locks.get(second.id)
    assert granted.state == "held"
    assert granted.fence > first.fence
    (letter,) = store.mail.list(mailbox="agent:y").items
    assert (letter.body["lock"], letter.body["state"]) == (second.id, "held")

    with raises_without_change(store, Held):
        store.locks.release(first)
    with raises_without_change(store, Held):
        store.locks.renew(first)
    (tmp_path / "src" / "a.py").write_text("late")
    with raises_without_change(store, Held) as caught:
        store.locks.commit(tmp_path, "late", agent="x", run=run.id)
    assert "agent:y" in caught.value.message
    with raises_without_change(store, Held):
        store.locks.commit(tmp_path, "late", agent="x", files=["src/a.py"])
