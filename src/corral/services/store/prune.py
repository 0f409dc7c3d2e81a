"""Retention: delete rows that are older than the global or the project's setting allows.

Imported rows are exempt unless the setting `imports.apply_retention` is on.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from corral import scratch_folders
from corral.db.database import Database
from corral.db.retention import Key, PruneBatch, Retention, RetentionScope
from corral.db.tx import Tx
from corral.domain.alerts import ops as alerts
from corral.domain.charges import ops as charges
from corral.domain.chat.channels import ops as channels
from corral.domain.checkpoints import ops as checkpoints
from corral.domain.decisions import ops as decisions
from corral.domain.delegations import ops as delegations
from corral.domain.events import ops as events
from corral.domain.groups import ops as groups
from corral.domain.host_requests import ops as requests
from corral.domain.idempotency import ops as answers
from corral.domain.imports import ops as imports
from corral.domain.imports import origins
from corral.domain.locks import ops as locks
from corral.domain.locks import touches
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.nodes import ops as nodes
from corral.domain.notes import ops as memory
from corral.domain.outputs import ops as outputs
from corral.domain.plans import ops as plans
from corral.domain.questions import ops as questions
from corral.domain.races import retention as race_retention
from corral.domain.runs import ops as runs
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.schedules import occurrences
from corral.domain.schedules import ops as schedules
from corral.domain.search import ops as search
from corral.domain.sessions import retention as session_retention
from corral.domain.settings import ops as settings
from corral.domain.tasks import retention as task_retention
from corral.domain.tokens import ops as tokens
from corral.services.runs.outputs import remove_deleted_files
from corral.services.store.deletion import delete_note, delete_run
from corral.services.store.model import Pruned

BATCH = 1_000
"""Rows of `import_origins` that are deleted in one transaction."""


def prune(database: Database, *, dry_run: bool) -> list[Pruned]:
    """Delete expired rows table by table, then expired files; see `Store.prune`."""
    with_imported = database.read(lambda tx: settings.get_value(tx, "imports.apply_retention"))
    imported = None if with_imported else False
    pruned = [
        result
        for retention in RETENTIONS
        for result in _prune(database, retention, dry_run, imported)
    ]
    if not dry_run:
        # Last, because expiry writes letters and events. The newest row of a table is never
        # deleted; new rows would make it deletable, and a dry run would count differently.
        while database.write(mail.expire_due):
            pass
        # Rows are deleted everywhere, files only on their own machine.
        while remove_deleted_files(database):
            pass
        for _ in _prune(database, outputs.DELETED_RETENTION, dry_run, imported):
            pass
        _prune_files(database)
        scratch_folders.remove_stale_folders()
    return pruned


def count_imported(database: Database) -> list[Pruned]:
    """Count the imported rows that retention would delete now if they were not exempt."""
    counted = [
        result
        for retention in RETENTIONS
        if retention.table not in ("imports", "import_origins")
        for result in _prune(database, retention, dry_run=True, imported=True)
    ]
    return [result for result in counted if result.rows]


def _prune(
    database: Database,
    retention: "Retention | CascadingRetention",
    dry_run: bool,
    imported: bool | None,
) -> Iterator[Pruned]:
    retention_ms = database.read(lambda tx: settings.get_value(tx, retention.setting))
    own = database.read(lambda tx: settings.list_project_values(tx, retention.setting))
    chosen: dict[str, int] = own if retention.by_project else {}
    rest = RetentionScope(except_projects=tuple(chosen), imported=imported)
    yield Pruned(
        retention.table,
        _delete_batches(database, retention, rest, retention_ms, dry_run),
        retention_ms,
    )
    for project, own_ms in chosen.items():
        rows = _delete_batches(
            database, retention, RetentionScope(project, imported=imported), own_ms, dry_run
        )
        yield Pruned(retention.table, rows, own_ms, project)


def _delete_batches(
    database: Database,
    retention: "Retention | CascadingRetention",
    scope: RetentionScope,
    retention_ms: int,
    dry_run: bool,
) -> int:
    before = database.clock.now() - retention_ms
    run: Any = database.read if dry_run else database.write
    rows = 0
    last: Key | None = None
    while True:
        step = partial(retention.prune, before=before, after=last, count_only=dry_run, scope=scope)
        piece: PruneBatch = run(step)
        rows += piece.rows
        last = piece.last
        if last is None:
            return rows


def _prune_files(database: Database) -> None:
    """Remove attachments of deleted messages, and folders of deleted sessions."""
    from corral.adapters import attachments
    from corral.importers import file_copies
    from corral.services.chat import attachments as chat_attachments
    from corral.services.chat import session_folder

    retention_ms = database.read(lambda tx: settings.get_value(tx, "messages.retention_ms"))
    # Twice the time, because a message that waits is kept longer.
    before = database.clock.now() - 2 * retention_ms
    for folder in chat_attachments.list_own_folders(database):
        attachments.delete_older(folder, before / 1_000)
    session_folder.remove_orphaned_folders(database)
    file_copies.remove_orphaned_copies(database)


def _prune_sessions(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(session_retention.count_prunable(tx, before=before, scope=scope), None)
    gone = 0
    ids = session_retention.list_prunable(tx, before=before, limit=5, scope=scope)
    for id in ids:
        # A long session takes several transactions: first its index entries, then its turns.
        if not search.remove_subject(tx, "turn", id) or not session_retention.delete_batch(tx, id):
            return PruneBatch(gone, id)
        gone += 1
    return PruneBatch(gone, ids[-1] if ids else None)


def _prune_runs(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(runs.count_ended_before(tx, before=before, scope=scope), None)
    ended = runs.list_ended_before(tx, before=before, scope=scope)
    for id in ended:
        delete_run(tx, id)
    return PruneBatch(len(ended), ended[-1] if ended else None)


def _prune_notes(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(memory.count_prunable(tx, before=before, scope=scope), None)
    ids = memory.list_prunable(tx, before=before, scope=scope)
    for id in ids:
        delete_note(tx, id)
    return PruneBatch(len(ids), ids[-1] if ids else None)


def _prune_outputs(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(outputs.count_prunable(tx, before=before, scope=scope), None)
    deleted = outputs.prune(tx, before=before, scope=scope)
    return PruneBatch(deleted, "" if deleted else None)


def _prune_tasks(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(task_retention.count_prunable(tx, before=before, scope=scope), None)
    ids = task_retention.list_prunable(tx, before=before, scope=scope)
    task_retention.delete_tasks(tx, ids)
    return PruneBatch(len(ids), ids[-1] if ids else None)


def _prune_races(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    if count_only:
        return PruneBatch(race_retention.count_prunable(tx, before=before, scope=scope), None)
    ids = race_retention.list_prunable(tx, before=before, scope=scope)
    race_retention.delete_races(tx, ids)
    return PruneBatch(len(ids), ids[-1] if ids else None)


def _prune_origins(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, scope: RetentionScope
) -> PruneBatch:
    """Delete the origins of an imported database when none of its objects exists any more.

    Until then all of them are kept: the next import would treat a row without origin as new.
    """
    from corral.importers.target.restoration import Restoration

    last = origins.SourceName(*str(after).split("\n", 1)) if after else origins.SourceName("", "")
    source = origins.find_next_source(tx, last) if scope.imported is not False else None
    if source is None:
        return PruneBatch(0, None)
    key = "\n".join(source)
    if origins.get_last_change(tx, source) >= before:
        return PruneBatch(0, key)
    restoration = Restoration(tx)
    if any(restoration.has_existing(known) for known in origins.iterate_imported(tx, source)):
        return PruneBatch(0, key)
    if count_only:
        return PruneBatch(origins.count_source(tx, source), key)
    gone = origins.delete_source(tx, source, limit=BATCH)
    return PruneBatch(gone, after or "\n" if gone == BATCH else key)


class CascadingRetention(NamedTuple):
    """Retention of rows that are deleted together with other rows."""

    table: str
    setting: str
    prune: Callable[..., PruneBatch]
    by_project: bool = True


# All retentions, in the order in which they are applied.
RETENTIONS: tuple[Retention | CascadingRetention, ...] = (
    # First, because they are kept as long as the objects they name, and a dry run must count the
    # same rows.
    imports.RETENTION,
    CascadingRetention("import_origins", "imports.retention_ms", _prune_origins, by_project=False),
    mail.RETENTION,
    events.RETENTION,
    schedules.RETENTION,
    occurrences.RETENTION,
    nodes.RETENTION,
    alerts.RETENTION,
    tokens.RETENTION,
    answers.RETENTION,
    charges.RETENTION,
    charges.TOTALS_RETENTION,
    charges.COUNTERS_RETENTION,
    delegations.RETENTION,
    *plans.RETENTION,
    *checkpoints.RETENTION,
    CascadingRetention("tasks", "tasks.retention_ms", _prune_tasks),
    CascadingRetention("races", "races.retention_ms", _prune_races),
    locks.RETENTION,
    touches.RETENTION,
    questions.RETENTION,
    decisions.RETENTION,
    channels.MESSAGES_RETENTION,
    channels.CARDS_RETENTION,
    requests.RETENTION,
    chains.RETENTION,
    sandbox_bridge.RETENTION,
    groups.REACTIONS_RETENTION,
    groups.POSTS_RETENTION,
    CascadingRetention("groups", "groups.retention_ms", groups.prune_groups),
    CascadingRetention("notes", "notes.retention_ms", _prune_notes),
    CascadingRetention("sessions", "sessions.retention_ms", _prune_sessions),
    CascadingRetention("outputs", "outputs.retention_ms", _prune_outputs),
    CascadingRetention("runs", "runs.retention_ms", _prune_runs),
)
