"""Retention: delete rows that are older than the global or the project's setting allows.

Imported rows are exempt unless the setting `imports.retention` is on.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from corral import scratch_folders
from corral.api.notes import forget as forget_note
from corral.api.runs import forget as forget_run
from corral.api.store import Pruned
from corral.db.database import Database
from corral.db.retention import Key, Piece, Retention, Whose
from corral.db.tx import Tx
from corral.domain.alerts import ops as alerts
from corral.domain.charges import ops as charges
from corral.domain.chat.channels import ops as gateway
from corral.domain.chat.conversations import agent_mail as exchanges
from corral.domain.checkpoints import ops as checkpoints
from corral.domain.decisions import ops as decisions
from corral.domain.delegations import ops as delegations
from corral.domain.events import ops as events
from corral.domain.groups import ops as groups
from corral.domain.host_requests import ops as requests
from corral.domain.idempotency import ops as answers
from corral.domain.imports import ops as imports
from corral.domain.locks import ops as locks
from corral.domain.mail import ops as mail
from corral.domain.nodes import ops as nodes
from corral.domain.notes import ops as memory
from corral.domain.outputs import ops as outputs
from corral.domain.plans import ops as plans
from corral.domain.questions import ops as questions
from corral.domain.races import retention as forgetting_races
from corral.domain.runs import ops as runs
from corral.domain.sandbox_bridge import ops as boxes
from corral.domain.schedules import occurrences
from corral.domain.schedules import ops as schedules
from corral.domain.search import ops as search
from corral.domain.sessions import retention
from corral.domain.settings import ops as settings
from corral.domain.tasks import retention as forgetting_tasks
from corral.domain.tokens import ops as tokens

PIECE = 1_000
"""Origins that are deleted in one transaction."""


def prune(database: Database, *, dry_run: bool) -> list[Pruned]:
    """Forget what is old, table by table; a dry run counts just what a real one would forget."""
    with_imported = database.read(lambda tx: settings.value(tx, "imports.retention"))
    imported = None if with_imported else False
    pruned = [each for kept in KEPT for each in _prune(database, kept, dry_run, imported)]
    if not dry_run:
        from corral.api.outputs import Outputs

        # Last: these write letters and events, which would leave the newest row free to go.
        while database.write(mail.expire_due):
            pass
        # The rows are gone everywhere; the files go on their own machine.
        while Outputs(database).clear_deleted():
            pass
        for _ in _prune(database, outputs.DELETED_KEPT, dry_run, imported):
            pass
        _prune_files(database)
        scratch_folders.sweep()
    return pruned


def count_imported(database: Database) -> list[Pruned]:
    """Count the imported rows that retention would delete now if they were not exempt."""
    counted = [
        each
        for kept in KEPT
        if kept.table not in ("imports", "origins")
        for each in _prune(database, kept, dry_run=True, imported=True)
    ]
    return [each for each in counted if each.rows]


def _prune(
    database: Database, kept: "Retention | Kept", dry_run: bool, imported: bool | None
) -> Iterator[Pruned]:
    keep_ms = database.read(lambda tx: settings.value(tx, kept.setting))
    own = database.read(lambda tx: settings.of_projects(tx, kept.setting))
    chosen: dict[str, int] = own if kept.by_project else {}
    rest = Whose(but=tuple(chosen), imported=imported)
    yield Pruned(kept.table, _walk(database, kept, rest, keep_ms, dry_run), keep_ms)
    for project, own_ms in chosen.items():
        rows = _walk(database, kept, Whose(project, imported=imported), own_ms, dry_run)
        yield Pruned(kept.table, rows, own_ms, project)


def _walk(
    database: Database, kept: "Retention | Kept", whose: Whose, keep_ms: int, dry_run: bool
) -> int:
    before = database.clock.now() - keep_ms
    run: Any = database.read if dry_run else database.write
    rows = 0
    last: Key | None = None
    while True:
        step = partial(kept.prune, before=before, after=last, count_only=dry_run, whose=whose)
        piece: Piece = run(step)
        rows += piece.rows
        last = piece.last
        if last is None:
            return rows


def _prune_files(database: Database) -> None:
    """Remove what was attached to messages that are long gone, and the folders of boxed sessions
    that are."""
    from corral.adapters import attachments
    from corral.importers import attached_files
    from corral.services.chat import attachments as chat_attachments
    from corral.services.chat import sandbox_sync

    keep_ms = database.read(lambda tx: settings.value(tx, "messages.keep_ms"))
    # Twice as long, because a message is kept while it waits, however old it is.
    before = database.clock.now() - 2 * keep_ms
    for folder in chat_attachments.own_folders(database):
        attachments.forget(folder, before / 1_000)
    sandbox_sync.forget(database)
    attached_files.forget(database)


def _prune_sessions(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    if count_only:
        return Piece(retention.count_prunable(tx, before=before, whose=whose), None)
    gone = 0
    found = retention.prunable(tx, before=before, limit=5, whose=whose)
    for id in found:
        # What is long goes over several transactions: out of the index first, then altogether.
        if not search.forget(tx, "turn", id) or not retention.forget(tx, id):
            return Piece(gone, id)
        gone += 1
    return Piece(gone, found[-1] if found else None)


def _prune_runs(tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose) -> Piece:
    if count_only:
        return Piece(runs.count_ended_before(tx, before=before, whose=whose), None)
    ended = runs.ended_before(tx, before=before, whose=whose)
    for id in ended:
        forget_run(tx, id)
    return Piece(len(ended), ended[-1] if ended else None)


def _prune_notes(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    if count_only:
        return Piece(memory.count_prunable(tx, before=before, whose=whose), None)
    ids = memory.prunable(tx, before=before, whose=whose)
    for id in ids:
        forget_note(tx, id)
    return Piece(len(ids), ids[-1] if ids else None)


def _prune_outputs(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    if count_only:
        return Piece(outputs.count_prunable(tx, before=before, whose=whose), None)
    deleted = outputs.prune(tx, before=before, whose=whose)
    return Piece(deleted, "" if deleted else None)


def _prune_tasks(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    if count_only:
        return Piece(forgetting_tasks.count_prunable(tx, before=before, whose=whose), None)
    ids = forgetting_tasks.prunable(tx, before=before, whose=whose)
    forgetting_tasks.forget(tx, ids)
    return Piece(len(ids), ids[-1] if ids else None)


def _prune_races(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    if count_only:
        return Piece(forgetting_races.count_prunable(tx, before=before, whose=whose), None)
    ids = forgetting_races.prunable(tx, before=before, whose=whose)
    forgetting_races.forget(tx, ids)
    return Piece(len(ids), ids[-1] if ids else None)


def _prune_origins(
    tx: Tx, *, before: int, after: Key | None, count_only: bool, whose: Whose
) -> Piece:
    """Forget what the rows of one database became, when nothing of it exists any more. While
    something does, all of them are kept: the next import would take a row without an origin for a
    new one."""
    from corral.importers.restoration import Restoration

    last = imports.Source(*str(after).split("\n", 1)) if after else imports.Source("", "")
    source = imports.next_source(tx, last) if whose.imported is not False else None
    if source is None:
        return Piece(0, None)
    key = "\n".join(source)
    if imports.last_news(tx, source) >= before:
        return Piece(0, key)
    restoration = Restoration(tx)
    if any(restoration.has_existing(known) for known in imports.known_of(tx, source)):
        return Piece(0, key)
    if count_only:
        return Piece(imports.count_source(tx, source), key)
    gone = imports.forget_source(tx, source, limit=PIECE)
    return Piece(gone, after or "\n" if gone == PIECE else key)


class Kept(NamedTuple):
    """Rows that take others along when they are forgotten."""

    table: str
    setting: str
    prune: Callable[..., Piece]
    by_project: bool = True


# What is forgotten when it is old, in this order.
KEPT: tuple[Retention | Kept, ...] = (
    # First: both are kept as long as what they name, and a dry run must count the same.
    imports.KEPT,
    Kept("origins", "imports.keep_ms", _prune_origins, by_project=False),
    mail.KEPT,
    events.KEPT,
    schedules.KEPT,
    occurrences.KEPT,
    nodes.KEPT,
    alerts.KEPT,
    tokens.KEPT,
    answers.KEPT,
    charges.KEPT,
    charges.TOTALS_KEPT,
    charges.COUNTERS_KEPT,
    delegations.KEPT,
    *plans.KEPT,
    *checkpoints.KEPT,
    Kept("tasks", "tasks.keep_ms", _prune_tasks),
    Kept("races", "races.keep_ms", _prune_races),
    locks.KEPT,
    locks.TOUCHES_KEPT,
    questions.KEPT,
    decisions.KEPT,
    gateway.KEPT,
    gateway.CARDS_KEPT,
    requests.KEPT,
    exchanges.KEPT,
    boxes.KEPT,
    groups.REACTIONS_KEPT,
    groups.POSTS_KEPT,
    Kept("groups", "groups.keep_ms", groups.prune),
    Kept("notes", "notes.keep_ms", _prune_notes),
    Kept("sessions", "sessions.keep_ms", _prune_sessions),
    Kept("outputs", "outputs.keep_ms", _prune_outputs),
    Kept("runs", "runs.keep_ms", _prune_runs),
)
