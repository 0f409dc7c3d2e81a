"""What users of Flightdeck were promised of locks, and what it did not keep."""

import subprocess
from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.clock import MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held
from tests.support.run_factories import running
from tests.support.store import refuses


def test_lock_conflict_renewal_and_expiry(
    store: Corral, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 5: holder and expiry are named, heartbeats keep it, the dead lose it, and whoever
    waits is granted and told; a late release or commit is refused."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "src").mkdir()
    project = store.projects.register(tmp_path)
    run = running(store)
    x = store.locks.acquire(project.id, "src/*", "x", run=run.id)

    with refuses(store, Held) as caught:
        store.locks.acquire(project.id, "./src/a.py", "y")
    assert caught.value.details["owner"] == "agent:x"
    assert caught.value.details["until"] == clock.now() + 5 * MINUTE

    for _ in range(20):  # x lives: its run's heartbeats carry the lock far past its five minutes
        clock.advance(30 * SECOND)
        run = store.internal.runs.heartbeat(run, output_bytes=0)
    assert store.locks.holders(project.id, "src/a.py")[0].id == x.id

    y = store.locks.request(project.id, "./src/a.py", "y")
    assert y.state == "waiting"
    clock.advance(5 * MINUTE)  # x is dead
    store.internal.locks.expire_due()
    granted = store.locks.get(y.id)
    assert granted.state == "held"
    assert granted.fence > x.fence
    (letter,) = store.mail.list(mailbox="agent:y").items
    assert (letter.body["lock"], letter.body["state"]) == (y.id, "held")

    with refuses(store, Held):
        store.locks.release(x)
    with refuses(store, Held):
        store.locks.renew(x)
    (tmp_path / "src" / "a.py").write_text("late")
    with refuses(store, Held) as caught:
        store.locks.commit(tmp_path, "late", agent="x", run=run.id)
    assert "agent:y" in caught.value.message
    with refuses(store, Held):
        store.locks.commit(tmp_path, "late", agent="x", files=["src/a.py"])
