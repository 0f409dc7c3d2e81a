from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral.api.operation import Room
from corral.db.database import Database, Finding, Table, Told, silent
from corral.db.filesystem import make_new_private_file, whole_file
from corral.kernel.errors import Invalid, Refused, StoreUnavailable
from corral.kernel.text import MAX_BODY, clean_text

if TYPE_CHECKING:
    from corral.domain.runs.model import Run
    from corral.services.store.move import Moved


def replace_damaged(url: str | None, file: str | Path) -> Path:
    """Put a back-up in the place of a damaged SQLite file, which is kept beside it."""
    from corral import config
    from corral.api import open
    from corral.db.copy import check_backup

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


def backup_at(file: str | Path) -> Path:
    """A back-up's whole path; refused when there is none, or it is not sound."""
    from corral.db.copy import check_backup

    path = Path(file).expanduser().absolute()
    check_backup(path)
    return path


def trouble_with(written: Path) -> str | None:
    """Why a back-up that was just written could not be restored as it is, and what to do."""
    from corral.db.copy import require_plain

    try:
        require_plain(written)
    except Invalid as error:
        return error.message
    return None


def _unused(path: Path) -> Path:
    """The path itself or, when it is taken, one with a number behind it."""
    names = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(name for name in names if not name.exists())


class Pruned(msgspec.Struct, frozen=True):
    """What was forgotten, or would be."""

    table: str
    rows: int
    keep_ms: int
    project_id: str | None = None
    """The project that chose this time for itself; null: everybody else."""


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

    @property
    def part_of(self) -> str | None:
        """The store that this one holds a part of, to be looked at; None: it is one of its own."""
        from corral.db.store_move_record import find

        found = find(self._database)
        return found.url if found is not None and found.phase == "part" else None

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

    def verify(self, *, told: Told | None = None) -> list[Finding]:
        """A thorough look at every page and row, and at the files of this machine that the rows
        speak of; it takes a while on a large store, and others may write meanwhile.

        `told` hears how far it is.
        """
        from corral.services.store import verify as store_verify

        tell = told or silent
        tell("pages", 0, 1)
        schema = self._schema_finding(thorough=True)
        # What is in the tables cannot be told when they are not ours.
        found = [*self._database.check(thorough=schema.state != "broken"), schema]
        if any(finding.state == "broken" for finding in found):
            return found  # what is in the rows cannot be told then
        found += store_verify.rows(self._database, tell)
        # A part of another store brings its files along; those around it are the other one's.
        if self.part_of is None:
            found += store_verify.files(self._database, tell)
        return found

    def backup(self, file: str | Path) -> Path:
        """Write the whole store, as it is at one moment, into a new private SQLite file."""
        target = Path(clean_text(str(file), "The path")).expanduser().absolute()
        with whole_file(target) as part:
            self._database.backup(part)
        return target

    def restore(self, file: str | Path) -> Path | None:
        """Replace all that the store holds by a back-up, of either engine.

        Refused while runs are going that the back-up does not know: nobody would learn what became
        of them. What a SQLite store held before, if anything, is kept in a file beside it, whose
        path comes back.
        """
        from corral.db.copy import current_copy
        from corral.db.store_move import staying

        source = backup_at(file)
        kept = None
        with staying(self._database), current_copy(source) as current:
            self._refuse_to_forget_live_runs(current)
            if self.path is not None:
                kept = _unused(self.path.with_name(f"{self.path.name}.before-restore"))
                make_new_private_file(kept)
            self._database.restore(current, kept)
        if kept is not None and not kept.stat().st_size:  # it held nothing
            kept.unlink()
            return None
        return kept

    def _refuse_to_forget_live_runs(self, backup: Path) -> None:
        from corral.api.runs import Runs
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
                f"Still running, and unknown to the back-up: {', '.join(going[:3])}{others}; wait "
                f"until that is over, or stop it (`corral stop {going[0]}`).",
                runs=going,
                reason="runs_active",
            )

    def move(self, url: str, *, told: Told | None = None) -> "Moved":
        """Move everything to another store, on either engine, and use that one from then on.

        Nobody writes meanwhile, and to the old place never again: whoever opens it gets the new
        one. Killed at any moment, the same call goes on; `stay` gives it up before the switch.
        Refused while daemons serve the store or runs are going. `told` hears how far it is.
        """
        from corral.services.store.move import move

        return move(self._database, url, told)

    def stay(self) -> bool:
        """Give up a move that was not switched, and let everybody write here again."""
        from corral.services.store.move import stay

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
        """Forget what is older than its setting says (`…keep_ms`), which a project may have chosen
        for itself; a dry run only counts, and just what a real one would forget.

        Letters that nobody took in time are ended, and their senders told.
        """
        from corral.services.store import prune as store_prune

        return store_prune.prune(self._database, dry_run=dry_run)

    def _schema_finding(self, *, thorough: bool = False) -> Finding:
        from corral.db.migrate import altered, newest
        from corral.db.schema_drift import drift, told

        try:
            changed = altered(self._database)
            strange = drift(self._database) if thorough and not changed else []
        except StoreUnavailable as error:
            return Finding("schema", "broken", error.message)
        except Refused as error:
            return Finding("schema", "warning", error.message)
        if changed:
            return Finding(
                "schema",
                "broken",
                f"Migration {changed[0]} is not the one this program "
                "knows; the store was made by another build.",
            )
        if strange:
            return Finding(
                "schema",
                "warning" if all(each.beside for each in strange) else "broken",
                f"It is not what the migrations make: {told(strange)}; `corral db move` brings "
                "the rows into a new store that has nothing else.",
            )
        return Finding("schema", "ok", f"Version {newest()}, as this program wants it.")


def active_runs(database: Database) -> "Iterator[Run]":
    """Runs that have not ended and that Corral keeps."""
    from corral.domain.runs import ops as runs
    from corral.domain.runs.model import Mode

    after = ""
    while page := database.read(partial(runs.active, after=after)):
        yield from (run for run in page if run.mode is not Mode.RECORDED)
        after = page[-1].id


def _process_of(run: "Run") -> tuple[object, ...]:
    return run.id, run.host, run.boot_id, run.pid, run.start_token
