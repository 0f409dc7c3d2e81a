"""Backup and restore of a whole store."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral.db.database import Database
from corral.db.filesystem import atomic_file, create_private_file
from corral.kernel.errors import Invalid, Refused
from corral.kernel.validation import check_text

if TYPE_CHECKING:
    from corral.domain.runs.model import Run


def back_up(database: Database, file: str | Path) -> Path:
    """Write a snapshot of the store into a new private SQLite file; returns its path."""
    target = Path(check_text(str(file), "The path")).expanduser().absolute()
    with atomic_file(target) as part:
        database.backup(part)
    return target


def restore(database: Database, file: str | Path) -> Path | None:
    """Replace the content of a store by a backup; see `Store.restore`."""
    from corral.db.backup import current_copy
    from corral.db.store_move import prevent_move

    source = check_backup_file(file)
    path = database.path
    previous = None
    with prevent_move(database), current_copy(source) as current:
        _check_live_runs(database, current)
        if path is not None:
            previous = find_unused_path(path.with_name(f"{path.name}.before-restore"))
            create_private_file(previous)
        database.restore(current, previous)
    if previous is not None and not previous.stat().st_size:  # the store was empty
        previous.unlink()
        return None
    return previous


def check_backup_file(file: str | Path) -> Path:
    """Return the absolute path of a backup; raises when it is missing or damaged."""
    from corral.db.backup import check_backup

    path = Path(file).expanduser().absolute()
    check_backup(path)
    return path


def restore_problem(file: Path) -> str | None:
    """Return why a new backup cannot be restored as it is, and what to do; None when it can."""
    from corral.db.backup import require_restorable

    try:
        require_restorable(file)
    except Invalid as error:
        return error.message
    return None


def find_unused_path(path: Path) -> Path:
    """Return the path itself, or the first `PATH-N` that does not exist."""
    names = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(name for name in names if not name.exists())


def iter_active_runs(database: Database) -> "Iterator[Run]":
    """Yield the runs that have a process which Corral started."""
    from corral.domain.runs import ops as runs
    from corral.domain.runs.model import RunMode

    after = ""
    while page := database.read(partial(runs.list_active, after=after)):
        yield from (run for run in page if run.mode is not RunMode.RECORDED)
        after = page[-1].id


def _check_live_runs(database: Database, backup: Path) -> None:
    """Refuse a backup that does not know a live run: its end could not be recorded."""
    from corral.db.sqlite import SqliteDatabase
    from corral.services.runs.lifecycle import refresh

    snapshot = SqliteDatabase(backup, clock=database.clock, actor=database.actor)
    try:
        processes = {_identify_process(run) for run in iter_active_runs(snapshot)}
    finally:
        snapshot.close()
    live = [
        run.id
        for run in iter_active_runs(database)
        if _identify_process(run) not in processes and refresh(database, run).is_live
    ]
    if live:
        others = f" and {len(live) - 3} more" if len(live) > 3 else ""
        raise Refused(
            f"The backup does not contain runs that are still live: {', '.join(live[:3])}{others}. "
            f"Wait until they have ended, or stop them (`corral stop {live[0]}`).",
            runs=live,
            reason="runs_active",
        )


def _identify_process(run: "Run") -> tuple[object, ...]:
    return run.id, run.host, run.boot_id, run.pid, run.start_token
