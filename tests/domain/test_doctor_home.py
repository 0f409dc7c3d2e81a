"""`corral doctor` and the home: leftover files of dead processes, overdue timers, permissions."""

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


def find_check(findings: list[Finding], check: str) -> Finding:
    (result,) = [finding for finding in findings if finding.check == check]
    return result


def exited_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        return child.pid


def create_leftovers(home: Path) -> list[Path]:
    """Create the files that a crashed daemon, supervisor and command leave."""
    run = home / "runs" / "run_1"
    run.mkdir(parents=True, mode=0o700)
    control_socket.listen(run).close()
    secrets = home / "secrets"
    secrets.mkdir(mode=0o700)
    paths = [
        home / "daemon.json",
        run / control_socket.SOCKET_NAME,
        secrets / f".token.new-{exited_pid()}",
    ]
    paths[0].write_text("{}")
    paths[2].write_text("partial")
    return paths


def test_overdue_timer_without_daemon_is_reported(store: Corral, clock: ManualClock) -> None:
    store.timers.set("agent:ada", "wake", delay_ms=MINUTE)
    clock.advance(MINUTE)
    assert health.check_timers(store._database).state == "ok", "a daemon may still fire the timer"
    clock.advance(5 * MINUTE)
    overdue = health.check_timers(store._database)
    assert overdue.state == "warning"
    assert "5m" in overdue.message
    assert "`corral up`" in overdue.message
    store.schedules.fire_due()
    assert health.check_timers(store._database).state == "ok"


def test_clean_home_has_no_findings(home: Path) -> None:
    assert {finding.state for finding in home_check.check_home(home)} == {"ok"}
    assert {finding.state for finding in examine()} == {"ok"}


def test_leftovers_are_reported_and_removed_only_with_fix(home: Path) -> None:
    paths = create_leftovers(home)
    for path in paths:
        path.chmod(0o600)
    checks = ("daemon files", "supervisors' sockets", "unfinished files")
    findings = home_check.check_home(home)
    for path, check in zip(paths, checks, strict=True):
        finding = find_check(findings, check)
        assert finding.state == "warning"
        assert str(path) in finding.message
        assert "`corral doctor --fix`" in finding.message
        assert path.exists()
    fixed = home_check.check_home(home, fix=True)
    assert all("Removed" in find_check(fixed, check).message for check in checks)
    assert not any(path.exists() for path in paths)
    assert {finding.state for finding in home_check.check_home(home)} == {"ok"}


def test_files_of_a_live_process_are_kept(home: Path) -> None:
    paths = create_leftovers(home)
    live_file = paths[2].with_name(".token.new-1")  # pid 1 always exists
    paths[2].rename(live_file)
    with paths[0].open("rb") as daemon_file, control_socket.listen(paths[1].parent) as listener:
        fcntl.flock(daemon_file, fcntl.LOCK_EX)
        assert isinstance(listener, socket.socket)
        home_check.check_home(home, fix=True)
        assert paths[0].exists()
        assert paths[1].exists()
        assert live_file.exists()


def test_daemon_started_during_the_check_keeps_its_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check locks the file while it removes it, so that a starting daemon is refused."""
    (home / "daemon.json").write_text("{}")
    (home / "daemon-notes.json").write_text("notes")
    unlink, locked = Path.unlink, []

    def lock_and_unlink(path: Path, missing_ok: bool = False) -> None:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked.append(path)
            except BlockingIOError:
                pass
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", lock_and_unlink)
    home_check.check_home(home, fix=True)
    assert locked == []
    assert not (home / "daemon.json").exists()
    assert (home / "daemon-notes.json").exists()


def test_supervisor_started_during_the_check_keeps_its_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_leftovers(home)[1]
    connect, servers = control_socket.connect, list[socket.socket]()

    def connect_before_a_start(folder: Path, *, timeout: float) -> socket.socket:
        try:
            return connect(folder, timeout=timeout)
        finally:
            servers.append(control_socket.listen(folder))

    monkeypatch.setattr(control_socket, "connect", connect_before_a_start)
    home_check.check_home(home, fix=True)
    assert len(servers) == 1
    assert path.exists()
    servers[0].close()


def test_secrets_and_backups_are_not_leftovers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(home))
    pid = exited_pid()
    with corral.open(home / "corral.db") as store:
        secret = store.secrets.save_value(f"token.new-{pid}", "secret value", where="file")
        copies = [store.db.backup(home / f"{name}-{pid}") for name in ("back.new", "back.part")]
    home_check.check_home(home, fix=True)
    assert Path(secret.reference.removeprefix("file:")).read_text() == "secret value"
    assert all(path.exists() for path in copies)


def test_readable_files_are_reported_and_made_private(home: Path) -> None:
    (home / "secrets").mkdir(mode=0o755)
    secret_file = home / "secrets" / "token"
    secret_file.write_text("value")
    secret_file.chmod(0o644)
    (home / "link").symlink_to("/etc/hostname")
    finding = find_check(home_check.check_home(home), "files")
    assert finding.state == "warning"
    assert str(secret_file) in finding.message
    home_check.check_home(home, fix=True)
    assert secret_file.stat().st_mode & 0o777 == 0o600
    assert (home / "secrets").stat().st_mode & 0o777 == 0o700
    assert find_check(home_check.check_home(home), "files").state == "ok"
