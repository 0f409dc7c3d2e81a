"""`corral doctor` finds what dead processes leave in a home and what nobody does, and clears away
what nobody needs."""

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import corral
from corral.adapters import control_socket
from corral.api import Corral
from corral.api.doctor import examine
from corral.db.types import Finding
from corral.kernel.clock import MINUTE, ManualClock
from corral.services.store import health, home_check


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    corral.open(folder / "corral.db").close()
    return folder


def of(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        return child.pid


def leave_behind(home: Path) -> list[Path]:
    """What a daemon, a supervisor and a command leave that die at a bad moment."""
    run = home / "runs" / "run_1"
    run.mkdir(parents=True, mode=0o700)
    control_socket.listen(run).close()
    secrets = home / "secrets"
    secrets.mkdir(mode=0o700)
    left = [
        home / "daemon.json",
        run / control_socket.SOCKET_NAME,
        secrets / f".door.new-{dead_pid()}",
    ]
    left[0].write_text("{}")
    left[2].write_text("half")
    return left


def test_overdue_timer_without_daemon_is_reported(store: Corral, clock: ManualClock) -> None:
    store.timers.set("agent:ada", "wake", delay_ms=MINUTE)
    clock.advance(MINUTE)
    assert health.check_timers(store._database).state == "ok", "there is time enough for a daemon"
    clock.advance(5 * MINUTE)
    late = health.check_timers(store._database)
    assert late.state == "warning"
    assert "5m" in late.message
    assert "`corral up`" in late.message
    store.schedules.fire_due()
    assert health.check_timers(store._database).state == "ok"


def test_clean_home_has_no_findings(home: Path) -> None:
    assert {finding.state for finding in home_check.check_home(home)} == {"ok"}
    assert {finding.state for finding in examine()} == {"ok"}


def test_leftovers_are_reported_and_removed_only_with_fix(home: Path) -> None:
    left = leave_behind(home)
    for path in left:
        path.chmod(0o600)
    checks = ("daemon files", "supervisors' sockets", "unfinished files")
    told = home_check.check_home(home)
    for path, check in zip(left, checks, strict=True):
        finding = of(told, check)
        assert finding.state == "warning"
        assert str(path) in finding.message
        assert "`corral doctor --fix`" in finding.message
        assert path.exists()
    mended = home_check.check_home(home, fix=True)
    assert all("Removed" in of(mended, check).message for check in checks)
    assert not any(path.exists() for path in left)
    assert {finding.state for finding in home_check.check_home(home)} == {"ok"}


def test_files_of_a_live_process_are_kept(home: Path) -> None:
    left = leave_behind(home)
    mine = left[2].with_name(".door.new-1")  # there is always a first process
    left[2].rename(mine)
    with left[0].open("rb") as held, control_socket.listen(left[1].parent) as line:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert isinstance(line, socket.socket)
        home_check.check_home(home, fix=True)
        assert left[0].exists()
        assert left[1].exists()
        assert mine.exists()


def test_daemon_started_during_the_check_keeps_its_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes over what the dead one left, or is refused while that goes; never loses it."""
    (home / "daemon.json").write_text("{}")
    (home / "daemon-notes.json").write_text("somebody's")
    remove, held = Path.unlink, []

    def just_then(path: Path, missing_ok: bool = False) -> None:
        with path.open("rb") as mine:
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(path)
            except BlockingIOError:
                pass
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", just_then)
    home_check.check_home(home, fix=True)
    assert held == []
    assert not (home / "daemon.json").exists()
    assert (home / "daemon-notes.json").exists()


def test_secrets_and_backups_are_not_leftovers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(home))
    pid = dead_pid()
    with corral.open(home / "corral.db") as store:
        kept = store.secrets.save_value(f"door.new-{pid}", "open sesame", where="file")
        copies = [store.db.backup(home / f"{name}-{pid}") for name in ("back.new", "back.part")]
    home_check.check_home(home, fix=True)
    assert Path(kept.reference.removeprefix("file:")).read_text() == "open sesame"
    assert all(path.exists() for path in copies)


def test_readable_files_are_reported_and_made_private(home: Path) -> None:
    (home / "secrets").mkdir(mode=0o755)
    door = home / "secrets" / "door"
    door.write_text("open")
    door.chmod(0o644)
    (home / "link").symlink_to("/etc/hostname")
    told = of(home_check.check_home(home), "files")
    assert told.state == "warning"
    assert str(door) in told.message
    home_check.check_home(home, fix=True)
    assert door.stat().st_mode & 0o777 == 0o600
    assert (home / "secrets").stat().st_mode & 0o777 == 0o700
    assert of(home_check.check_home(home), "files").state == "ok"
