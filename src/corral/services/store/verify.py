"""Verification of a store: pages, schema, rows, and the files that rows refer to.

Other processes may write meanwhile. Rows are checked in one snapshot. When a file and its row
disagree, the row is read again, and only a problem that persists is reported.
"""

import os
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral import config
from corral.adapters.processes import process
from corral.db.database import Database
from corral.db.schema import list_nonempty_tables
from corral.db.stateful_table import StatefulTable
from corral.db.store_move_record import read_export_origin
from corral.db.types import Finding, ProgressCallback
from corral.domain.insights import integrity
from corral.domain.insights.integrity import IntegrityCheck, IntegrityProblem
from corral.domain.outputs import ops as outputs
from corral.domain.outputs.model import STREAMS, Output, OutputState
from corral.domain.runs import ops as runs
from corral.kernel.errors import NotFound, StoreUnavailable
from corral.services.store.declarations import find_declarations
from corral.services.store.schema_check import check_schema

if TYPE_CHECKING:
    from corral.adapters.output.sealed_format import SealIndex

MAX_REPORTED = 20
"""Problems of one kind that are listed; the others are counted."""
BATCH = 500


def verify_store(database: Database, on_progress: ProgressCallback) -> list[Finding]:
    """Check pages, schema, rows and the files of this machine.

    Stops after the first broken layer: rows cannot be judged when pages or schema are damaged.
    """
    on_progress("pages", 0, 1)
    schema = check_schema(database, thorough=True)
    # The engine's check of content needs the tables of this program.
    findings = [*database.check(thorough=schema.state != "broken"), schema]
    if any(finding.state == "broken" for finding in findings):
        return findings
    findings += check_rows(database, on_progress)
    # The files around an export belong to the store that it was exported from.
    if read_export_origin(database) is None:
        findings += check_files(database, on_progress)
    return findings


def check_rows(database: Database, on_progress: ProgressCallback) -> Iterator[Finding]:
    """Check references between rows, and stored counts, totals and states."""
    filled = database.read(list_nonempty_tables, mode="one")
    checks = [check for check in integrity.list_checks() if check.table in filled]
    problems: list[IntegrityProblem] = []
    for number, check in enumerate(checks):
        on_progress("rows", number, len(checks))
        problems += _run_confirmed(database, check)
    for name, message in _SOUND.items():
        findings = [Finding(*problem) for problem in problems if problem.check == name]
        yield from findings or [Finding(name, "ok", message)]
    yield from check_states(database, on_progress, filled)


_SOUND = {
    "orphans": "Every row has its parent.",
    "counts": "Counts are right: turns, posts, versions, open tasks, bytes of output.",
    "totals": "Totals equal the sums of their charges.",
}


def _run_confirmed(database: Database, check: IntegrityCheck) -> list[IntegrityProblem]:
    """Run a check; run it again if it finds problems, and return those of the second run."""
    return database.read(check.run) if database.read(check.run) else []


def check_states(
    database: Database, on_progress: ProgressCallback, filled: Set[str]
) -> Iterator[Finding]:
    """Compare the state of each row with its last event."""
    tables = [table for table in find_declarations(StatefulTable).values() if table.table in filled]
    wrong: list[str] = []
    checked = 0
    for number, table in enumerate(tables):
        after: str | int | None = 0 if table.id_prefix else ""
        while after is not None:
            on_progress(f"states of {table.table}", number, len(tables))
            page = database.read(partial(integrity.check_states, table=table, after=after))
            wrong += page.wrong
            checked += page.rows
            after = page.last
    yield from _list_problems("states", "broken", wrong, "see `corral events`")
    if not wrong:
        yield Finding("states", "ok", f"{checked:,} rows are in the state of their last event.")


def _list_problems(check: str, state: str, problems: list[str], hint: str) -> Iterator[Finding]:
    for problem in problems[:MAX_REPORTED]:
        yield Finding(check, state, f"{problem}; {hint}.")
    if len(problems) > MAX_REPORTED:
        yield Finding(check, state, f"{len(problems) - MAX_REPORTED:,} more like this; {hint}.")


# -- files ----------------------------------------------------------------------------------------


def check_files(database: Database, on_progress: ProgressCallback) -> Iterator[Finding]:
    """Check the files of this machine: missing, changed, or unknown to the store."""
    for name, check, sound in (
        ("outputs", _verify_outputs, "Every output of this machine exists and is unchanged."),
        ("runs", _verify_run_folders, "Every run directory belongs to a known run."),
        ("attachments", _verify_attachments, "Every attachment exists and belongs to a message."),
        (
            "sandboxes",
            _verify_sandboxes,
            "Every directory of a sandboxed session belongs to a known session.",
        ),
        ("worktrees", _verify_worktrees, "Every worktree belongs to an attempt or a task."),
    ):
        problems = list(check(database, on_progress))
        yield from (Finding(name, state, message) for state, message in problems[:MAX_REPORTED])
        if len(problems) > MAX_REPORTED:
            rest = len(problems) - MAX_REPORTED
            message = f"{rest:,} more like this. Repair these, and check again."
            yield Finding(name, problems[MAX_REPORTED][0], message)
        if not problems:
            yield Finding(name, "ok", sound)


FileProblem = tuple[str, str]
"""The state (broken or warning) and the message of a finding."""


def _verify_outputs(database: Database, on_progress: ProgressCallback) -> Iterator[FileProblem]:
    host, after, checked = process.host(), "", 0
    while page := database.read(partial(outputs.list_on_host, host=host, after=after)):
        for row in page:
            checked += 1
            on_progress("outputs", checked, checked)
            if problem := _check_output(database, row):
                yield problem
        after = page[-1].id


def _check_output(database: Database, row: Output) -> FileProblem | None:
    """Return the problem with a run's files, if the row has not changed meanwhile."""
    while problem := _find_output_problem(database, row):
        try:
            current = database.read(partial(outputs.get, run_id=row.id))
        except NotFound:
            return None
        if current == row:
            return problem
        if current.folder is None or current.state not in (OutputState.OPEN, OutputState.SEALED):
            return None
        row = current
    return None


def _find_output_problem(database: Database, row: Output) -> FileProblem | None:
    assert row.folder is not None
    folder = Path(row.folder)
    if row.state is OutputState.OPEN:
        return _check_open_output(database, row, folder)
    sizes = {"output": row.sealed_bytes, "stderr": row.stderr_bytes}
    for stream in STREAMS:
        if sizes[stream] is not None and (problem := _check_sealed(database, folder, stream, row)):
            if problem == MISSING and database.read(
                partial(outputs.has_chunks, run_id=row.id, size=sizes[stream] or 0, stream=stream)
            ):
                continue  # it is read from the store
            return (
                "broken",
                f"The {stream} of {row.id} in {folder} {problem}. Restore the file from a copy. "
                f"{row.ends_kept}",
            )
    return None


MISSING = "is missing"
DAMAGED = "is damaged"


def _check_sealed(database: Database, folder: Path, stream: str, row: Output) -> str | None:
    from corral.adapters.output.seal import sealed_path
    from corral.adapters.output.sealed_file import open_sealed

    known_index = _find_index(database, row) if stream == "output" else None
    path = sealed_path(folder / stream)
    try:
        sealed = open_sealed(path)
        if sealed is None:
            return MISSING
        size = row.sealed_bytes if stream == "output" else row.stderr_bytes
        if sealed.index.sealed_bytes != size:
            return f"has {sealed.index.sealed_bytes:,} bytes instead of {size:,}"
        if stream == "output" and known_index is None:
            return "is unknown"  # the row says why
        is_expected = stream != "output" or sealed.index == known_index
        if not is_expected or sealed.text_hash() != sealed.index.sha256:
            return "was changed after it was sealed"
    except StoreUnavailable:  # raised for the file; the store was read before
        return DAMAGED
    except OSError as error:
        return f"is not readable ({error.strerror})"
    return None


def _find_index(database: Database, row: Output) -> "SealIndex | None":
    """Return the index of a sealed output in the store; None when the store has none."""
    try:
        return database.read(partial(outputs.get_index, run_id=row.id))
    except NotFound:
        return None


def _check_open_output(database: Database, row: Output, folder: Path) -> FileProblem | None:
    """Check that an ended run has its output. A live run may not have written anything yet.

    Raises StoreUnavailable when the run cannot be read from the store.
    """
    from corral.adapters.output.reader import OutputFiles

    if _is_live(database, row.id):
        return None
    try:
        if OutputFiles(folder).exists():
            return None
    except StoreUnavailable:  # raised for the file; the store was read before
        return "broken", f"The output of {row.id} in {folder} {DAMAGED}. Restore it from a copy."
    except OSError as error:
        return (
            "broken",
            f"The output of {row.id} in {folder} is not readable ({error.strerror}). Make it "
            "readable, and check again.",
        )
    return (
        "broken",
        f"{row.id} has ended without an output in {folder}. Record that with `corral recover`.",
    )


def _is_live(database: Database, run_id: str) -> bool:
    try:
        return database.read(partial(runs.get, id=run_id)).is_live
    except NotFound:
        return False


def _verify_run_folders(database: Database, on_progress: ProgressCallback) -> Iterator[FileProblem]:
    """Find folders of unknown runs.

    A run is stored before its folder is created, and deleted before its folder is removed.
    """
    root = config.home() / "runs"
    names = sorted(entry.name for entry in _list_folders(root) if entry.name.startswith("run_"))
    unknown: list[str] = []
    for first in range(0, len(names), BATCH):
        on_progress("directories of runs", first, len(names))
        batch = names[first : first + BATCH]
        known_ids = database.read(partial(integrity.find_known_runs, ids=batch))
        unknown += [name for name in batch if name not in known_ids and (root / name).exists()]
    if unknown:
        yield (
            "warning",
            f"{len(unknown):,} directories in {root} belong to no run of this store, for example "
            f"{unknown[0]}. If no other store uses this home, remove them, for example with "
            f"`rm -r {root / unknown[0]}`.",
        )


def _list_folders(root: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(root) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _verify_attachments(database: Database, on_progress: ProgressCallback) -> Iterator[FileProblem]:
    from corral.adapters import attachments
    from corral.domain.settings import ops as settings
    from corral.services.chat.attachments import list_own_folders

    root = config.home() / "channels"
    unused = {
        str(path)
        for folder in list_own_folders(database)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    retention_ms = database.read(lambda tx: int(settings.get_value(tx, "messages.retention_ms")))
    deleted_before = database.clock.now() - 2 * retention_ms
    after = 0
    while page := database.read(partial(integrity.list_messages_with_files, after=after)):
        for message in page:
            on_progress("attachments", message.seq, message.seq)
            for file in attachments.list_stored(message.data):
                unused.discard(file.path or "")
                problem = attachments.describe_change(file, root)
                # When several machines share a store, another one may have the file.
                elsewhere = problem == attachments.GONE and database.stores_output
                if problem and not elsewhere and message.created_at >= deleted_before:
                    yield (
                        "broken",
                        f"{file.name!r} of msg_{message.seq} {problem}: {file.path}. See the "
                        f"message with `corral message show msg_{message.seq}`.",
                    )
        after = page[-1].seq
    # A new file may not have a message yet; an old one is removed by retention.
    old = sorted(path for path in unused if _get_modified_at(path) < deleted_before)
    if old:
        yield (
            "warning",
            f"{len(old):,} files in {root} belong to no message, for example {old[0]}. Remove "
            "them with `corral db prune`.",
        )


def _get_modified_at(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns // 1_000_000
    except OSError:
        return 1 << 62  # removed meanwhile


def _verify_sandboxes(database: Database, on_progress: ProgressCallback) -> Iterator[FileProblem]:
    from corral.services.chat import session_folder

    orphaned = [str(path) for path in session_folder.find_orphaned_folders(database)]
    if orphaned:
        yield (
            "warning",
            f"{len(orphaned):,} directories of sandboxed sessions belong to deleted sessions, for "
            f"example {orphaned[0]}. Remove them with `corral db prune`.",
        )
    if database.stores_output:
        return  # another machine may have them
    after = ""
    while page := database.read(partial(integrity.list_sandboxed_sessions, after=after)):
        for id in page:
            if not os.path.isdir(session_folder.get_session_folder(id).top):
                yield (
                    "warning",
                    f"The directory of the sandboxed session {id} is missing, with the files and "
                    "unsent messages of its agent. The next run creates it again; see "
                    f"`corral session show {id}`.",
                )
        after = page[-1]


def _verify_worktrees(database: Database, on_progress: ProgressCallback) -> Iterator[FileProblem]:
    from corral.services.races import orphans
    from corral.services.tasks import cleanup as tasks_cleanup

    on_progress("worktrees", 0, 1)
    for race_id, worktree in orphans.list_missing(database):
        yield (
            "warning",
            f"The worktree {worktree} of {race_id} is missing. Record that with "
            f"`corral race clean {race_id} --yes`.",
        )
    for orphan in orphans.iter_orphans(database):
        yield (
            "warning",
            f"{orphan.folder} belongs to no attempt. See its content with "
            "`corral race clean --orphans`.",
        )
    for project_id, folder in tasks_cleanup.list_orphans(database):
        yield (
            "warning",
            f"{folder} belongs to no task of this store. See its content with "
            f"`corral task clean --project {project_id}`.",
        )
