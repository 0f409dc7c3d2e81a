"""Pruning: delete rows and files that are older than the retention settings allow.

A project's own setting takes precedence over the global one. Imported rows are exempt unless the
setting `imports.apply_retention` is on.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from corral import scratch_folders
from corral.db.database import Database
from corral.db.retention import Key, PruneBatch, RetentionRule, RetentionScope
from corral.domain.mail import ops as mail
from corral.domain.outputs import ops as outputs
from corral.domain.settings import ops as settings
from corral.services.runs.outputs import remove_deleted_files
from corral.services.store.model import PruneResult
from corral.services.store.retention_rules import RETENTION_RULES


def prune(database: Database, *, dry_run: bool) -> list[PruneResult]:
    """Delete expired rows table by table, then expired files; see `Store.prune`."""
    with_imported = database.read(lambda tx: settings.get_value(tx, "imports.apply_retention"))
    imported = None if with_imported else False
    pruned = [
        result
        for rule in RETENTION_RULES
        for result in _apply_rule(database, rule, imported=imported, dry_run=dry_run)
    ]
    if not dry_run:
        # Last, because expiry writes letters and events. The newest row of a table is never
        # deleted; new rows would make it deletable, and a dry run would count differently.
        while database.write(mail.expire_due):
            pass
        _remove_files(database)
    return pruned


def count_imported(database: Database) -> list[PruneResult]:
    """Count the imported rows that retention would delete now if they were not exempt."""
    counted = [
        result
        for rule in RETENTION_RULES
        if rule.table not in ("imports", "import_origins")
        for result in _apply_rule(database, rule, imported=True, dry_run=True)
    ]
    return [result for result in counted if result.rows]


def _apply_rule(
    database: Database, rule: RetentionRule, *, imported: bool | None, dry_run: bool
) -> Iterator[PruneResult]:
    """Prune a table: the rows of each project that has its own setting, then all other rows."""
    global_ms = database.read(lambda tx: settings.get_value(tx, rule.setting))
    own_ms: dict[str, int] = {}
    if rule.by_project:
        own_ms = database.read(lambda tx: settings.list_project_values(tx, rule.setting))
    others = RetentionScope(except_projects=tuple(own_ms), imported=imported)
    yield PruneResult(
        rule.table, _prune_scope(database, rule, others, global_ms, dry_run), global_ms
    )
    for project, project_ms in own_ms.items():
        scope = RetentionScope(project, imported=imported)
        rows = _prune_scope(database, rule, scope, project_ms, dry_run)
        yield PruneResult(rule.table, rows, project_ms, project)


def _prune_scope(
    database: Database,
    rule: RetentionRule,
    scope: RetentionScope,
    retention_ms: int,
    dry_run: bool,
) -> int:
    """Delete all expired rows of a scope, one batch per transaction; returns how many."""
    before = database.clock.now() - retention_ms
    run: Any = database.read if dry_run else database.write
    rows = 0
    last: Key | None = None
    while True:
        step = partial(rule.prune, before=before, after=last, count_only=dry_run, scope=scope)
        batch: PruneBatch = run(step)
        rows += batch.rows
        last = batch.last
        if last is None:
            return rows


def _remove_files(database: Database) -> None:
    """Remove the files of deleted rows that are on this machine."""
    from corral.adapters import attachments
    from corral.importers import file_copies
    from corral.services.chat import attachments as chat_attachments
    from corral.services.chat import session_folder

    # Rows are deleted everywhere, files only on their own machine.
    while remove_deleted_files(database):
        pass
    for _ in _apply_rule(database, outputs.DELETED_RETENTION, imported=False, dry_run=False):
        pass
    retention_ms = database.read(lambda tx: settings.get_value(tx, "messages.retention_ms"))
    # Twice the time, because a message that waits is kept longer.
    before = database.clock.now() - 2 * retention_ms
    for folder in chat_attachments.list_own_folders(database):
        attachments.delete_older(folder, before / 1_000)
    session_folder.remove_orphaned_folders(database)
    file_copies.remove_orphaned_copies(database)
    scratch_folders.remove_stale_folders()
