import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from corral.db.database import Database, Finding, Table
from corral.db.filesystem import make_new_private_file
from corral.db.retention import Key, Piece, Retention
from corral.db.tx import Tx
from corral.kernel.errors import Invalid, Refused, StoreUnavailable
from corral.kernel.text import MAX_BODY, clean_text
from corral.library.notes import forget as forget_note
from corral.library.operation import Room
from corral.library.runs import Runs
from corral.library.runs import forget as forget_run
from corral.rooms.alerts import ops as alerts
from corral.rooms.answers import ops as answers
from corral.rooms.boxes import ops as boxes
from corral.rooms.charges import ops as charges
from corral.rooms.checkpoints import ops as checkpoints
from corral.rooms.decisions import ops as decisions
from corral.rooms.delegations import ops as delegations
from corral.rooms.events import ops as events
from corral.rooms.gateway import corresponding as exchanges
from corral.rooms.gateway import ops as gateway
from corral.rooms.groups import ops as groups
from corral.rooms.imports import ops as imports
from corral.rooms.locks import ops as locks
from corral.rooms.mail import ops as mail
from corral.rooms.memory import ops as memory
from corral.rooms.nodes import ops as nodes
from corral.rooms.outputs import ops as outputs
from corral.rooms.plans import ops as plans
from corral.rooms.questions import ops as questions
from corral.rooms.races import forgetting as forgetting_races
from corral.rooms.requests import ops as requests
from corral.rooms.runs import ops as runs
from corral.rooms.runs.model import Mode, Run
from corral.rooms.schedules import history as occurrences
from corral.rooms.schedules import ops as schedules
from corral.rooms.search import ops as search
from corral.rooms.sessions import forgetting
from corral.rooms.settings import ops as settings
from corral.rooms.tasks import forgetting as forgetting_tasks
from corral.rooms.tokens import ops as tokens

if TYPE_CHECKING:
    from corral.db.relocation import Told
    from corral.library.relocating import Moved


def replace_damaged(url: str | None, file: str | Path) -> Path:
    """Put a back-up in the place of a damaged SQLite file, which is kept beside it."""
    from corral import config
    from corral.db.copy import check_backup
    from corral.library import open

    source = Path(file).expanduser().absolute()
    check_backup(source)  # before anything is moved
    path = Path(config.store_url(url).removeprefix("sqlite:///")).absolute()
    aside = _unused(path.with_name(f"{path.name}.damaged"))
    for end in ("-wal", "-shm", ""):
        beside = path.with_name(path.name + end)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + end))
    with open(url) as store:
        store.db.restore(source)
    return aside


def _unused(path: Path) -> Path:
    """The path itself or, when it is taken, one with a number behind it."""
    names = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(name for name in names if not name.exists())


class Pruned(msgspec.Struct, frozen=True):
    """What was forgotten, or would be."""

    table: str
    rows: int
    keep_ms: int


class Store(Room):
    """The store itself: its schema, its health, its back-ups."""

    noun = "db"

    @property
    def url(self) -> str:
        """Where the store is, without any password."""
        return self._database.url

    @property
    def engine(self) -> str:
        return self._database.engine

    @property
    def path(self) -> Path | None:
        """The file of a SQLite store."""
        return getattr(self._database, "path", None)

    def schema_version(self) -> int:
        """The number of the last migration that the store has seen."""
        return self._database.schema_version()

    def migrate(self) -> list[int]:
        """Bring the schema up to date; gives back the numbers of the migrations applied."""
        from corral.db.migrate import migrate

        return migrate(self._database)

    def check(self) -> list[Finding]:
        """A quick look: whether the engine finds the store sound, and the schema is ours."""
        return [*self._database.check(thorough=False), self._schema_finding()]

    def verify(self) -> list[Finding]:
        """A thorough look at every page and reference; it takes a while on a large store."""
        return [*self._database.check(thorough=True), self._schema_finding()]

    def backup(self, file: str | Path) -> Path:
        """Write the whole store, as it is at one moment, into a new private SQLite file."""
        target = Path(clean_text(str(file), "The path")).expanduser().absolute()
        make_new_private_file(target)
        target.unlink()
        # Under another name until it is whole: half a back-up must not look like one.
        part = target.with_name(f"{target.name}.part-{os.getpid()}")
        try:
            part.unlink(missing_ok=True)
            make_new_private_file(part)
            self._database.backup(part)
            os.link(part, target)
        except FileExistsError:
            raise Invalid(f"{target} is there already; give a new name.") from None
        finally:
            part.unlink(missing_ok=True)
        return target

    def restore(self, file: str | Path) -> Path | None:
        """Replace all that the store holds by a back-up, of either engine.

        Refused while runs are going that the back-up does not know: nobody would learn what became
        of them. What a SQLite store held before is kept in a file beside it, whose path comes back.
        """
        from corral.db.copy import check_backup, current_copy

        source = Path(file).expanduser().absolute()
        check_backup(source)
        kept = None
        with current_copy(source) as current:
            self._refuse_to_forget_live_runs(current)
            if self.path is not None:
                kept = _unused(self.path.with_name(f"{self.path.name}.before-restore"))
                make_new_private_file(kept)
            self._database.restore(current, kept)
        return kept

    def _refuse_to_forget_live_runs(self, backup: Path) -> None:
        from corral.db.sqlite import SqliteDatabase

        known = SqliteDatabase(backup, clock=self._database.clock, actor=self._database.actor)
        try:
            processes = {_process_of(run) for run in active_runs(known)}
        finally:
            known.close()
        rooms = Runs(self._database)
        going = [
            run.id
            for run in active_runs(self._database)
            if _process_of(run) not in processes and rooms.refreshed(run).is_live
        ]
        if going:
            others = f" and {len(going) - 3} more" if len(going) > 3 else ""
            raise Refused(
                f"The back-up does not know of {', '.join(going[:3])}{others}, which still run; "
                f"wait until they are over, or stop them (`corral stop {going[0]}`).",
                runs=going,
            )

    def move(self, url: str, *, told: "Told | None" = None) -> "Moved":
        """Move everything to another store, on either engine, and use that one from then on.

        Nobody writes meanwhile, and to the old place never again: whoever opens it gets the new
        one. Killed at any moment, the same call goes on; `stay` gives it up before the switch.
        Refused while daemons serve the store or runs are going. `told` hears how far it is.
        """
        from corral.library.relocating import move

        return move(self._database, url, told)

    def stay(self) -> bool:
        """Give up a move that was not switched, and let everybody write here again."""
        from corral.library.relocating import stay

        return stay(self._database)

    def sql(self, query: str, *, limit: int = 1_000, timeout_ms: int = 5_000) -> Table:
        """A read-only query over the documented tables, limited in rows and time."""
        if not 1 <= limit <= 100_000 or not 1 <= timeout_ms <= 600_000:
            raise Invalid(
                "The limit goes from 1 to 100,000 rows, the time from 1 ms to 10 minutes."
            )
        clean_text(query, "The query", most=MAX_BODY)
        return self._database.query(query, limit=limit, timeout_ms=timeout_ms)

    def durability(self, wanted: str | None = None) -> str:
        """normal: what was accepted survives the death of any process; full: also a power cut."""
        if wanted not in (None, "normal", "full"):
            raise Invalid(f"{wanted!r} is neither normal nor full.", value=wanted)
        return self._database.durability(wanted)

    def prune(self, *, dry_run: bool = False) -> list[Pruned]:
        """Forget what is older than its setting says (`…keep_ms`); a dry run only counts.

        Letters that nobody took in time are ended first, and their senders told.
        """
        while not dry_run and self._database.write(mail.expire_due):
            pass
        pruned = [self._prune(kept, dry_run) for kept in KEPT]
        if not dry_run:
            from corral.library.outputs import Outputs

            # The rows are gone everywhere; the files go on their own machine.
            while Outputs(self._database).clear_deleted():
                pass
            self._prune(outputs.DELETED_KEPT, dry_run)
            self._prune_files()
        return pruned

    def _prune(self, kept: "Retention | Kept", dry_run: bool) -> Pruned:
        keep_ms = self._database.read(lambda tx: settings.value(tx, kept.setting))
        before = self._database.clock.now() - keep_ms
        run: Any = self._database.read if dry_run else self._database.write
        piece = Piece(0, None)
        rows = 0
        while True:
            step = partial(kept.prune, before=before, after=piece.last, count_only=dry_run)
            piece = run(step)
            rows += piece.rows
            if piece.last is None:
                return Pruned(kept.table, rows, keep_ms)

    def _prune_files(self) -> None:
        """Remove what was attached to messages that are long gone, and the folders of boxed
        sessions that are."""
        from corral import config
        from corral.adapters import attachments
        from corral.library import exchanging

        keep_ms = self._database.read(lambda tx: settings.value(tx, "messages.keep_ms"))
        # Twice as long, because a message is kept while it waits, however old it is.
        before = self._database.clock.now() - 2 * keep_ms
        attachments.forget(config.home() / "channels", before / 1_000)
        exchanging.forget(self._database)

    def _schema_finding(self) -> Finding:
        from corral.db.migrate import altered, newest

        try:
            changed = altered(self._database)
        except StoreUnavailable as error:
            return Finding("schema", "broken", error.message)
        if changed:
            return Finding(
                "schema",
                "broken",
                f"Migration {changed[0]} is not the one this program "
                "knows; the store was made by another build.",
            )
        return Finding("schema", "ok", f"Version {newest()}, as this program wants it.")


def active_runs(database: Database) -> Iterator[Run]:
    """Runs that have not ended and that Corral keeps."""
    after = ""
    while page := database.read(partial(runs.active, after=after)):
        yield from (run for run in page if run.mode is not Mode.RECORDED)
        after = page[-1].id


def _process_of(run: Run) -> tuple[object, ...]:
    return run.id, run.host, run.boot_id, run.pid, run.start_token


def _prune_sessions(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(forgetting.count_prunable(tx, before=before), None)
    gone = 0
    found = forgetting.prunable(tx, before=before, limit=5)
    for id in found:
        # What is long goes over several transactions: out of the index first, then altogether.
        if not search.forget(tx, "turn", id) or not forgetting.forget(tx, id):
            return Piece(gone, id)
        gone += 1
    return Piece(gone, found[-1] if found else None)


def _prune_runs(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(runs.count_ended_before(tx, before=before), None)
    ended = runs.ended_before(tx, before=before)
    for run in ended:
        forget_run(tx, run.id)
    return Piece(len(ended), ended[-1].id if ended else None)


def _prune_notes(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(memory.count_prunable(tx, before=before), None)
    ids = memory.prunable(tx, before=before)
    for id in ids:
        forget_note(tx, id)
    return Piece(len(ids), ids[-1] if ids else None)


def _prune_outputs(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(outputs.count_prunable(tx, before=before), None)
    deleted = outputs.prune(tx, before=before)
    return Piece(deleted, "" if deleted else None)


def _prune_tasks(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(forgetting_tasks.count_prunable(tx, before=before), None)
    ids = forgetting_tasks.prunable(tx, before=before)
    forgetting_tasks.forget(tx, ids)
    return Piece(len(ids), ids[-1] if ids else None)


def _prune_races(tx: Tx, *, before: int, after: Key | None, count_only: bool) -> Piece:
    if count_only:
        return Piece(forgetting_races.count_prunable(tx, before=before), None)
    ids = forgetting_races.prunable(tx, before=before)
    forgetting_races.forget(tx, ids)
    return Piece(len(ids), ids[-1] if ids else None)


class Kept(NamedTuple):
    """Rows that take others along when they are forgotten."""

    table: str
    setting: str
    prune: Callable[..., Piece]


# What is forgotten when it is old, in this order.
KEPT: tuple[Retention | Kept, ...] = (
    mail.KEPT,
    events.KEPT,
    schedules.KEPT,
    occurrences.KEPT,
    nodes.KEPT,
    alerts.KEPT,
    tokens.KEPT,
    answers.KEPT,
    Kept("charges", "charges.keep_ms", charges.prune),
    charges.TOTALS_KEPT,
    imports.KEPT,
    imports.ORIGINS_KEPT,
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
    groups.POSTS_KEPT,
    groups.REACTIONS_KEPT,
    Kept("groups", "groups.keep_ms", groups.prune),
    Kept("notes", "notes.keep_ms", _prune_notes),
    Kept("sessions", "sessions.keep_ms", _prune_sessions),
    Kept("outputs", "outputs.keep_ms", _prune_outputs),
    Kept("runs", "runs.keep_ms", _prune_runs),
)
