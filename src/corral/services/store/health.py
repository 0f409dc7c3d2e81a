"""Health checks of the installation and of an open store."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from corral import config
from corral.adapters.processes import process
from corral.db.database import Database
from corral.db.types import Finding
from corral.domain.events import ops as events
from corral.domain.mail import queries as mail
from corral.domain.nodes import ops as nodes
from corral.domain.nodes.model import Node, NodeState
from corral.domain.runs import dispatch
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.kernel.clock import MINUTE, SECOND, SystemClock, format_duration
from corral.kernel.errors import CorralError
from corral.kernel.lease import MAX_LEASE_MS as MAX_LEASE_MS

LATE_MS = MINUTE
MIN_FREE_BYTES = 256 * 1024 * 1024
_NO_DAEMON = (
    "Not running; start it with `corral up`. Runs work without it. Timers, alerts, chats and "
    "queued runs need it."
)


# -- installation ---------------------------------------------------------------------------------


def check_installation(*, fix: bool) -> list[Finding]:
    """Check Python, SQLite and the home directory; `fix` removes leftovers and makes files private.

    Needs no store.
    """
    home = config.home()
    findings = [_check_python(), _check_sqlite(), _check_folder(home, fix)]
    if home.is_dir():
        from corral.services.store import home_check

        findings += home_check.check_home(home, fix=fix)
    return findings


def _check_python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]}")


def _check_sqlite() -> Finding:
    import apsw

    from corral.db.sqlite_maintenance import require_current_sqlite

    try:
        require_current_sqlite()
    except CorralError as error:
        return Finding("sqlite", "broken", error.message)
    return Finding("sqlite", "ok", f"{apsw.sqlite_lib_version()}, included in apsw")


def _check_folder(home: Path, fix: bool) -> Finding:
    if not home.exists():
        return Finding("home", "ok", f"{home} does not exist yet; it is created on first use.")
    return _check_private("home", home, 0o700, fix)


def _check_private(check: str, path: Path, wanted: int, fix: bool) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 and fix:
        os.chmod(path, wanted)
        return Finding(check, "ok", f"{path} was readable by other users and is private now.")
    if mode & 0o077:
        return Finding(
            check,
            "warning",
            f"{path} is readable by other users. Make it private with `corral doctor --fix`.",
        )
    return Finding(check, "ok", f"{path} is private to its user.")


# -- store ----------------------------------------------------------------------------------------


def check_store(database: Database, *, version: str, fix: bool) -> list[Finding]:
    """Check an open store and the machines that use it; `fix` repairs what is safe to repair.

    `version` is the version of this program, which the daemon should have too.
    """
    findings = []
    path = database.path
    if path is not None:
        findings += _check_file(path, fix)
    findings.append(check_durability(database.durability(), database.power_loss_risks()))
    findings += [
        _check_daemon(database, version),
        _check_runs(database, fix),
        _check_queue(database),
        check_timers(database),
        check_mailboxes(database),
    ]
    findings += _check_clock(database, fix)
    page = database.read(lambda tx: nodes.list_nodes(tx, limit=200), mode="one")
    return findings + check_nodes(page.items)


def _check_file(path: Path, fix: bool) -> list[Finding]:
    from corral.db.filesystem import NETWORK_FILE_SYSTEMS, read_file_system_type

    kind = read_file_system_type(path)
    free = shutil.disk_usage(path.parent).free
    return [
        _check_private("store file", path, 0o600, fix),
        Finding(
            "file system",
            "warning",
            f"{kind} is a network file system: only one process at a time may use the store. Use "
            "PostgreSQL for several machines.",
        )
        if kind in NETWORK_FILE_SYSTEMS
        else Finding("file system", "ok", kind or "local, as far as is known"),
        Finding(
            "space",
            "ok" if free > MIN_FREE_BYTES else "warning",
            f"{free // (1024 * 1024):,} MiB are free.",
        ),
    ]


def check_durability(durability: str, risks: Sequence[str]) -> Finding:
    """Report what accepted changes survive. `risks` are server settings that weaken it."""
    if risks:
        return Finding(
            "durability",
            "warning",
            f"{durability}: accepted changes survive the death of any process, but a power cut of "
            f"the server can lose them: {'; '.join(risks)}. Change the settings in postgresql.conf "
            "and reload the server.",
        )
    survives = "the death of any process" if durability == "normal" else "a power cut too"
    return Finding("durability", "ok", f"{durability}: accepted changes survive {survives}.")


def _check_daemon(database: Database, version: str) -> Finding:
    """Report whether the daemon of this home answers and its loops work."""
    from corral.adapters import daemon_process

    daemon = daemon_process.find_daemon(database.url)
    if daemon is None:
        return Finding("daemon", "ok", _NO_DAEMON)
    reply = daemon_process.read_health(daemon)
    if reply is None:
        return Finding(
            "daemon",
            "broken",
            f"Process {daemon.pid} does not answer at {daemon.url}. Restart it with "
            "`corral down --now` and `corral up`.",
        )
    status = reply.get("status", {})
    running = status.get("version", version)
    if running != version:
        return Finding(
            "daemon",
            "warning",
            f"Process {daemon.pid} is Corral {running}, but this is {version}. Restart it with "
            "`corral down` and `corral up`; runs continue meanwhile.",
        )
    failing = [
        f"{loop['name']} ({loop['error']})"
        for loop in status.get("loops", ())
        if loop["state"] == "fails"
    ]
    if failing:
        return Finding("daemon", "warning", f"These loops fail: {', '.join(failing)}.")
    return Finding("daemon", "ok", f"Process {daemon.pid} answers at {daemon.url}.")


def _check_runs(database: Database, fix: bool) -> Finding:
    """Report live runs of this machine whose supervisor is gone; `fix` runs recovery."""
    if fix:
        from corral.services.runs.recovery import recover_all

        changed = recover_all(database)
        if not changed:
            return Finding("runs", "ok", "Every live run has a process.")
        message = f"Recovery corrected {len(changed)} runs, for example {changed[0].run_id}."
        return Finding("runs", "ok", message)
    silent = [run for run in _iter_local_runs(database) if not _has_supervisor(run.id)]
    if not silent:
        return Finding("runs", "ok", "The supervisor of every live run of this machine answers.")
    return Finding(
        "runs",
        "warning",
        f"The supervisors of {len(silent)} live runs do not answer, for example {silent[0].id}. "
        "Check them with `corral recover` or `corral doctor --fix`.",
    )


def _iter_local_runs(database: Database) -> Iterator[Run]:
    for state in ("running", "stopping"):
        page = database.read(partial(runs.list_runs, state=state, limit=200))
        for run in page.items:
            if run.host == process.host() and run.supervisor_pid is not None:
                yield run


def _has_supervisor(run_id: str) -> bool:
    from corral.adapters import control_socket

    try:
        control_socket.connect(config.run_folder(run_id), timeout=1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        pass  # unknown, so the run is not reported
    return True


def _check_queue(database: Database) -> Finding:
    """Report due runs that no process starts, or that fit no machine."""
    late = database.clock.now() - LATE_MS
    if not database.read(dispatch.count_free_slots):
        return Finding("run queue", "ok", "The maximum number of concurrent runs is reached.")
    page = database.read(lambda tx: runs.list_runs(tx, state="queued", limit=200))
    waiting = [run for run in page.items if run.due_at <= late]
    if not waiting:
        return Finding("run queue", "ok", "No due run is waiting.")
    return Finding(
        "run queue",
        "warning",
        f"{len(waiting)} due runs are waiting, for example {waiting[0].id}. No daemon is running, "
        "or no machine has their directory, their labels and a free slot; see `corral node list`.",
    )


def check_timers(database: Database) -> Finding:
    """Report timers and schedules that are due and not fired."""
    from corral.domain.schedules import ops as schedules

    due_at = database.read(schedules.find_next_at, mode="one")
    now = database.clock.now()
    if due_at is None or due_at > now - LATE_MS:
        return Finding("timers", "ok", "No timer is late.")
    late = (now - due_at) // MINUTE * MINUTE
    return Finding(
        "timers",
        "warning",
        f"A timer has been due for {format_duration(late)}, and no daemon fired it. Start one with "
        "`corral up`; it applies the misfire rule of each schedule.",
    )


_CONSUMERS = {
    "session": "the daemon starts its agent; check `corral up`, and `corral session show` for a "
    "run that holds the session",
    "place": "the daemon sends it; check `corral channel list`",
    "hook": "the daemon delivers it; check `corral alert list`",
    "agent": "the agent reads it in its next run",
    "user": "read it with `corral mail claim`",
    "queue": "a worker has to claim it",
}


def check_mailboxes(database: Database) -> Finding:
    """Report mailboxes whose oldest due letter was not claimed for `mail.stalled_ms`."""
    limit = int(database.read(lambda tx: settings.get_value(tx, "mail.stalled_ms"), mode="one"))
    now = database.clock.now()
    stalled = database.read(lambda tx: mail.list_stalled(tx, before=now - limit), mode="one")
    if not stalled:
        return Finding(
            "mail", "ok", f"Every due letter was claimed within {format_duration(limit)}."
        )
    first = stalled[0]
    late = (now - first.due_at) // MINUTE * MINUTE
    rest = f" {len(stalled) - 1:,} more mailboxes wait too." if len(stalled) > 1 else ""
    kind = first.mailbox.partition(":")[0]
    return Finding(
        "mail",
        "warning",
        f"The oldest letter of {first.mailbox} has been due for {format_duration(late)} and is not "
        f"claimed: {_CONSUMERS[kind]}. List it with `corral mail list --mailbox "
        f"{first.mailbox}`.{rest}",
    )


def _check_clock(database: Database, fix: bool) -> Iterator[Finding]:
    """Report clocks that differ, and leases and schedules that a fast clock set too far ahead."""
    now = database.clock.now()
    difference = now - SystemClock().now()
    page = database.read(lambda tx: events.list_newest(tx, limit=1), mode="one")
    newest = max((event.at for event in page.items), default=0)
    if abs(difference) > MINUTE:
        direction = "ahead of" if difference > 0 else "behind"
        yield Finding(
            "clock",
            "warning",
            f"The store's time is {_format_seconds(abs(difference))} {direction} this machine's "
            "clock; check the clocks of all machines that use the store.",
        )
    elif newest > now + MINUTE:
        yield Finding(
            "clock",
            "warning",
            f"The newest event is {_format_seconds(newest - now)} ahead of the time: a clock was "
            "ahead when it was written. Leases and timers of that time end later by as much.",
        )
    else:
        yield Finding("clock", "ok", "The store's time agrees with this machine's clock.")
    yield from _check_leases(database, now)
    yield from _check_schedules(database, now, fix)


def _format_seconds(ms: int) -> str:
    """Format a duration in whole seconds."""
    return format_duration(ms // SECOND * SECOND)


def _check_leases(database: Database, now: int) -> Iterator[Finding]:
    latest = now + MAX_LEASE_MS + MINUTE
    overlong = database.read(partial(mail.count_overlong_leases, after=latest), mode="one")
    if overlong.until is not None:
        yield Finding(
            "leases",
            "warning",
            f"{overlong.count} claimed letters (let_{overlong.first_seq} and others) are held "
            f"for {format_duration(overlong.until - now)}, longer than any lease: a clock was "
            "ahead. Release one with `corral mail drop` and `corral mail resend`.",
        )


def _check_schedules(database: Database, now: int, fix: bool) -> Iterator[Finding]:
    from corral.domain.schedules import ops as schedules
    from corral.domain.schedules.recurrence import RecurrenceRule

    ahead = []
    page = database.read(lambda tx: schedules.list_schedules(tx, limit=200), mode="one")
    for schedule in page.items:
        rule = RecurrenceRule(schedule.kind, schedule.rule, schedule.time_zone, schedule.anchor_at)
        planned, upcoming = schedule.next_at, rule.find_next(now)
        if planned is not None and upcoming is not None and planned > upcoming + MINUTE:
            ahead.append(schedule)
    if not ahead:
        return
    if fix:
        for schedule in ahead:
            database.write(partial(schedules.pause, id=schedule.id))
            database.write(partial(schedules.resume, id=schedule.id))
        yield Finding(
            "schedules", "ok", f"Planned {len(ahead)} schedules again that were too far ahead."
        )
        return
    yield Finding(
        "schedules",
        "warning",
        f"{len(ahead)} schedules ({ahead[0].id} and others) are planned later than their interval: "
        "a clock was ahead. Plan them again with `corral doctor --fix`.",
    )


def check_nodes(known: Sequence[Node]) -> list[Finding]:
    """Report machines that are lost and have not returned under the same name."""
    up = {node.name for node in known if node.state is NodeState.UP}
    lost = sorted({node.name for node in known if node.state is NodeState.LOST} - up)
    return [
        Finding("nodes", "warning", f"{name} is lost. If it is alive, start `corral up` there.")
        for name in lost
    ]
