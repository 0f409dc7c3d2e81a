"""Looking at all that Corral needs: the program, the folders, the store."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from corral import __version__, config
from corral.adapters import process
from corral.db.database import Finding
from corral.domain.nodes.model import NodeState
from corral.kernel.clock import MINUTE, SECOND, SystemClock, format_duration
from corral.kernel.errors import CorralError
from corral.kernel.lease import LONGEST as LONGEST_LEASE

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.runs.model import Run

LATE_MS = MINUTE
LITTLE_SPACE = 256 * 1024 * 1024
_NO_DAEMON = (
    "None runs; `corral up` starts it. Runs need none; timers, alerts, chats and what waits in "
    "line do."
)


def examine(url: str | None = None, *, fix: bool = False) -> list[Finding]:
    """Check everything, also when the store cannot be opened; `fix` repairs what is safe."""
    home = config.home()
    findings = [_python(), _sqlite(), _folder(home, fix)]
    if home.is_dir():
        from corral.services.store import doctor_fix

        findings += doctor_fix.look(home, fix=fix)
    from corral.api import open

    try:
        with open(url, create=False) as store:
            findings.append(Finding("store", "ok", f"{store.db.url} can be opened."))
            findings += store.db.check()
            if store.db.path is not None:
                findings += _file(store.db.path, fix)
            findings.append(_durability(store))
            if not config.is_afar(store.address):  # of there, its own doctor knows more
                findings += [_daemon(store), _runs(store, fix), _line(store), late_timers(store)]
                findings.append(stalled_mailboxes(store))
                findings += _clock(store, fix)
            findings += _machines(store)
    except CorralError as error:
        missing = error.details.get("reason") == "missing" and "moved_from" not in error.details
        findings.append(Finding("store", "warning" if missing else "broken", error.message))
    return findings


def _daemon(store: "Corral") -> Finding:
    """The daemon of this home: whether it is there, answers, and its loops work."""
    from corral.adapters import daemon_process

    daemon = daemon_process.find(store.db.url)
    if daemon is None:
        return Finding("daemon", "ok", _NO_DAEMON)
    told = daemon_process.ask(daemon)
    if told is None:
        return Finding(
            "daemon",
            "broken",
            f"Its process {daemon.pid} does not answer at {daemon.url}; `corral down --now`, then "
            "`corral up`.",
        )
    version = told.get("status", {}).get("version", __version__)
    if version != __version__:
        return Finding(
            "daemon",
            "warning",
            f"Process {daemon.pid} is Corral {version}, and this is {__version__}; `corral down`, "
            "then `corral up`. Runs go on meanwhile.",
        )
    loops = told.get("status", {}).get("loops", ())
    failing = [f"{loop['name']} ({loop['error']})" for loop in loops if loop["state"] == "fails"]
    if failing:
        return Finding("daemon", "warning", f"These loops fail: {', '.join(failing)}.")
    return Finding("daemon", "ok", f"Process {daemon.pid} answers at {daemon.url}.")


def _runs(store: "Corral", fix: bool) -> Finding:
    """Runs of this machine that are said to go on, and whose keeper is gone."""
    if fix:
        found = store.runs.recover()
        if not found:
            return Finding("runs", "ok", "Every run that is said to go on does.")
        return Finding("runs", "ok", f"{len(found)} were found dead, as {found[0].run_id}.")
    silent = [run for run in _going_here(store) if not _answers(run.id)]
    if not silent:
        return Finding("runs", "ok", "Every run of this machine that is said to go on answers.")
    return Finding(
        "runs",
        "warning",
        f"{len(silent)} are said to go on, and their keepers do not answer, as {silent[0].id}; "
        "`corral doctor --fix` or `corral recover` finds out what became of them.",
    )


def _going_here(store: "Corral") -> "Iterator[Run]":
    for state in ("running", "stopping"):
        for run in store.runs.list(state=state, limit=200).items:
            if run.host == process.host() and run.keeper_pid is not None:
                yield run


def _answers(run: str) -> bool:
    from corral.adapters import control_socket

    try:
        control_socket.connect(config.run_folder(run), timeout=1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        pass  # not told for certain
    return True


def _machines(store: "Corral") -> Iterator[Finding]:
    """Machines that went silent and did not come back under the same name."""
    nodes = store.nodes.list(limit=200).items
    up = {node.name for node in nodes if node.state is NodeState.UP}
    for name in sorted({node.name for node in nodes if node.state is NodeState.LOST} - up):
        yield Finding(
            "machines", "warning", f"{name} is lost; start `corral up` there if it is alive."
        )


def _line(store: "Corral") -> Finding:
    """Runs that should have been started: nobody starts them, or no machine fits."""
    late = store.now() - LATE_MS
    if not store.runs._room_for():
        return Finding("line", "ok", "As many runs as allowed are going.")
    waiting = [
        run for run in store.runs.list(state="queued", limit=200).items if run.due_at <= late
    ]
    if not waiting:
        return Finding("line", "ok", "No run waits without a reason.")
    return Finding(
        "line",
        "warning",
        f"{len(waiting)} runs wait, as {waiting[0].id}: no daemon is up to start them, or no "
        "machine that is up has their directory, their labels and a free slot; see "
        "`corral node list`.",
    )


def late_timers(store: "Corral") -> Finding:
    """Timers and schedules whose time has come, and that nobody fires."""
    due_at = store.schedules.next_at()
    if due_at is None or due_at > store.now() - LATE_MS:
        return Finding("timers", "ok", "None is late.")
    late = (store.now() - due_at) // MINUTE * MINUTE
    return Finding(
        "timers",
        "warning",
        f"One should have fired {format_duration(late)} ago, and no daemon did it; "
        "`corral up` starts one, which makes good what was missed as each schedule says.",
    )


_CLAIMED_BY = {
    "session": "the daemon starts its agent; check `corral up`, and `corral session show` for a "
    "run that holds the session",
    "place": "the daemon sends it; check `corral channel list`",
    "hook": "the daemon delivers it; check `corral alert list`",
    "agent": "the agent reads it in its next run",
    "user": "read it with `corral mail claim`",
    "queue": "a worker has to claim it",
}


def stalled_mailboxes(store: "Corral") -> Finding:
    """Report mailboxes whose oldest due letter was not claimed for `mail.stalled_ms`."""
    patience = int(store.settings.get("mail.stalled_ms").value)
    stalled = store.mail._stalled(before=store.now() - patience)
    if not stalled:
        return Finding(
            "mail", "ok", f"Every due letter was claimed within {format_duration(patience)}."
        )
    first = stalled[0]
    late = (store.now() - first.due_at) // MINUTE * MINUTE
    rest = f" {len(stalled) - 1:,} more mailboxes wait too." if len(stalled) > 1 else ""
    kind = first.mailbox.partition(":")[0]
    return Finding(
        "mail",
        "warning",
        f"The oldest letter of {first.mailbox} has been due for {format_duration(late)} and is not "
        f"claimed: {_CLAIMED_BY[kind]}. List it with `corral mail list --mailbox "
        f"{first.mailbox}`.{rest}",
    )


def _clock(store: "Corral", fix: bool) -> Iterator[Finding]:
    """Report clocks that differ, and leases and schedules that a clock ahead of time has set too
    far in the future."""
    now = store.now()
    apart = now - SystemClock().now()
    newest = max((event.at for event in store.events.newest(limit=1).items), default=0)
    if abs(apart) > MINUTE:
        words = "ahead of" if apart > 0 else "behind"
        yield Finding(
            "clock",
            "warning",
            f"The store's time is {_seconds(abs(apart))} {words} this machine's clock; "
            "check the clocks of all machines that use the store.",
        )
    elif newest > now + MINUTE:
        yield Finding(
            "clock",
            "warning",
            f"The newest event is {_seconds(newest - now)} ahead of the time: a clock was "
            "ahead when it was written. Leases and timers of that time end later by as much.",
        )
    else:
        yield Finding("clock", "ok", "The store's time agrees with this machine's clock.")
    yield from _held_ahead(store, now)
    yield from _planned_ahead(store, now, fix)


def _seconds(ms: int) -> str:
    """A duration in whole seconds."""
    return format_duration(ms // SECOND * SECOND)


def _held_ahead(store: "Corral", now: int) -> Iterator[Finding]:
    sql = (
        "SELECT count(*), min(seq), max(due_at) FROM letters WHERE state = 'waiting'"
        f" AND owner IS NOT NULL AND due_at > {now + LONGEST_LEASE + MINUTE}"
    )
    count, seq, until = store.db.sql(sql, limit=1).rows[0]
    if count:
        yield Finding(
            "leases",
            "warning",
            f"{count} claimed letters (let_{seq} and others) are held for "
            f"{format_duration(until - now)}, longer than any lease: a clock was ahead. "
            "Release one with `corral mail drop` and `corral mail resend`.",
        )


def _planned_ahead(store: "Corral", now: int, fix: bool) -> Iterator[Finding]:
    from corral.domain.schedules.recurrence import Rule

    ahead = []
    for schedule in store.schedules.list(limit=200).items:
        rule = Rule(schedule.kind, schedule.rule, schedule.time_zone, schedule.anchor_at)
        planned, upcoming = schedule.next_at, rule.next(now)
        if planned is not None and upcoming is not None and planned > upcoming + MINUTE:
            ahead.append(schedule)
    if not ahead:
        return
    if fix:
        for schedule in ahead:
            store.schedules.pause(schedule.id)
            store.schedules.resume(schedule.id)
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


def _python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]}")


def _sqlite() -> Finding:
    import apsw

    from corral.db.sqlite_maintenance import require_current_sqlite

    try:
        require_current_sqlite()
    except CorralError as error:
        return Finding("sqlite", "broken", error.message)
    return Finding("sqlite", "ok", f"{apsw.sqlite_lib_version()}, brought along by apsw")


def _folder(home: Path, fix: bool) -> Finding:
    if not home.exists():
        return Finding("home", "ok", f"{home} is made when it is first used.")
    return _private("home", home, 0o700, fix)


def _file(path: Path, fix: bool) -> list[Finding]:
    from corral.db.filesystem import REMOTE, file_system

    kind = file_system(path)
    free = shutil.disk_usage(path.parent).free
    return [
        _private("store file", path, 0o600, fix),
        Finding(
            "file system",
            "warning",
            f"{kind} is shared over a network; one process at a time "
            "may use the store. PostgreSQL serves several machines.",
        )
        if kind in REMOTE
        else Finding("file system", "ok", kind or "local, as far as can be told"),
        Finding(
            "space",
            "ok" if free > LITTLE_SPACE else "warning",
            f"{free // (1024 * 1024):,} MiB are free.",
        ),
    ]


def _private(check: str, path: Path, wanted: int, fix: bool) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 and fix:
        os.chmod(path, wanted)
        return Finding(check, "ok", f"{path} was open to others and is private now.")
    if mode & 0o077:
        return Finding(
            check,
            "warning",
            f"{path} can be read by others; `corral doctor --fix` makes it private.",
        )
    return Finding(check, "ok", f"{path} is private to its user.")


def _durability(store: "Corral") -> Finding:
    """Report what an accepted change survives, by the server's actual settings."""
    durability = store.db.durability()
    risks = [] if config.is_afar(store.address) else store._database.power_loss_risks()
    if risks:
        return Finding(
            "durability",
            "warning",
            f"{durability}: accepted changes survive the death of any process, but a power cut of "
            f"the server can lose them: {'; '.join(risks)}. Change the settings in postgresql.conf "
            "and reload the server.",
        )
    survives = "any process's death" if durability == "normal" else "a power cut too"
    return Finding("durability", "ok", f"{durability}: what was accepted survives {survives}.")
