"""A thorough look at a store: its pages, its rows, and the files that they speak of.

Others go on writing meanwhile. What is asked of rows is asked of one snapshot; where a file and a
row disagree the row is read again, and only what it says then is told.
"""

import os
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path

from corral import config
from corral.adapters import process
from corral.db.database import Database, Finding, Told
from corral.db.schema import filled_tables
from corral.db.transitions import StateTable
from corral.domain.insights import integrity
from corral.domain.insights.integrity import Look, Wrong
from corral.domain.outputs import ops as outputs
from corral.domain.outputs.model import STREAMS, Output, OutputState
from corral.domain.runs import ops as runs
from corral.kernel.errors import NotFound, StoreUnavailable
from corral.services.store.sql_catalogue import declared

MOST = 20
"""Of one kind of fault so many are told, and how many more there are."""
PIECE = 500


def rows(database: Database, told: Told) -> Iterator[Finding]:
    """Rows that belong to nothing, and counts, totals and states that are not true."""
    filled = database.read(filled_tables, mode="one")
    looks = [look for look in integrity.looks() if look.table in filled]
    wrong: list[Wrong] = []
    for nth, look in enumerate(looks):
        told("rows", nth, len(looks))
        wrong += _sure(database, look)
    for check, said in _SOUND.items():
        found = [Finding(*each) for each in wrong if each.check == check]
        yield from found or [Finding(check, "ok", said)]
    yield from states(database, told, filled)


_SOUND = {
    "orphans": "Every row has what it belongs to.",
    "counts": "What is counted is there: turns, posts, versions, open tasks, bytes of output.",
    "totals": "The charges add up to their totals.",
}


def _sure(database: Database, look: Look) -> list[Wrong]:
    """What a look finds, when a second one finds it, too."""
    return database.read(look.run) if database.read(look.run) else []


def states(database: Database, told: Told, filled: Set[str]) -> Iterator[Finding]:
    """Rows in a state that their last event did not lead to."""
    tables = [table for table in declared(StateTable).values() if table.table in filled]
    wrong: list[str] = []
    looked = 0
    for nth, table in enumerate(tables):
        after: str | int | None = 0 if table.number_of else ""
        while after is not None:
            told(f"states of {table.table}", nth, len(tables))
            seen = database.read(partial(integrity.states, table=table, after=after))
            wrong += seen.wrong
            looked += seen.rows
            after = seen.last
    yield from _listed("states", "broken", wrong, "`corral events` has the record")
    if not wrong:
        yield Finding("states", "ok", f"{looked:,} rows are in the state that their events tell.")


def _listed(check: str, state: str, wrong: list[str], command: str) -> Iterator[Finding]:
    for each in wrong[:MOST]:
        yield Finding(check, state, f"{each}; {command}.")
    if len(wrong) > MOST:
        yield Finding(check, state, f"{len(wrong) - MOST:,} more like that; {command}.")


# -- files ----------------------------------------------------------------------------------------


def files(database: Database, told: Told) -> Iterator[Finding]:
    """Files of this machine that are missing, changed, or of nothing that this store knows."""
    for check, look, sound in (
        ("outputs", _outputs, "Every output that should be on this machine is there, unchanged."),
        ("runs", _run_folders, "Every folder of a run is of a run that is known."),
        ("attachments", _attachments, "Files of messages are there, and of messages."),
        ("boxes", _boxes, "Folders of boxed sessions are of sessions that are known."),
        ("worktrees", _worktrees, "Worktrees are those of attempts and tasks."),
    ):
        found = list(look(database, told))
        yield from (Finding(check, state, message) for state, message in found[:MOST])
        if len(found) > MOST:
            more = f"{len(found) - MOST:,} more like that; repair these, and check again."
            yield Finding(check, found[MOST][0], more)
        if not found:
            yield Finding(check, "ok", sound)


Fault = tuple[str, str]
"""broken or warning, and the sentence."""


def _outputs(database: Database, told: Told) -> Iterator[Fault]:
    here, after, looked = process.host(), "", 0
    while page := database.read(partial(outputs.held_on, host=here, after=after)):
        for row in page:
            looked += 1
            told("outputs", looked, looked)
            if fault := _sure_of_output(database, row):
                yield fault
        after = page[-1].id


def _sure_of_output(database: Database, row: Output) -> Fault | None:
    """What is wrong with a run's files, while the row stays as it is."""
    while fault := _output(database, row):
        try:
            now = database.read(partial(outputs.get, run_id=row.id))
        except NotFound:
            return None
        if now == row:
            return fault
        if now.folder is None or now.state not in (OutputState.OPEN, OutputState.SEALED):
            return None
        row = now
    return None


def _output(database: Database, row: Output) -> Fault | None:
    assert row.folder is not None
    folder = Path(row.folder)
    if row.state is OutputState.OPEN:
        return _open_output(database, row, folder)
    sizes = {"output": row.sealed_bytes, "errors": row.errors_bytes}
    for stream in STREAMS:
        if sizes[stream] is not None and (why := _sealed(database, folder, stream, row)):
            if why == GONE and database.read(
                partial(outputs.is_kept, run_id=row.id, size=sizes[stream] or 0, stream=stream)
            ):
                continue  # the store has it, and it is read from there
            return (
                "broken",
                f"The {stream} of {row.id} in {folder} {why}; put the file there from a copy of "
                f"that folder. {row.ends_kept}",
            )
    return None


GONE = "is gone"


def _sealed(database: Database, folder: Path, stream: str, row: Output) -> str | None:
    from corral.adapters.output.seal import sealed_file
    from corral.adapters.output.sealed import open_sealed

    path = sealed_file(folder / stream)
    try:
        sealed = open_sealed(path)
        if sealed is None:
            return GONE
        size = row.sealed_bytes if stream == "output" else row.errors_bytes
        if sealed.index.sealed_bytes != size:
            return f"has {sealed.index.sealed_bytes:,} bytes, and {size:,} were sealed"
        known = stream != "output" or sealed.index == database.read(
            partial(outputs.index, run_id=row.id)
        )
        if not known or sealed.text_hash() != sealed.index.sha256:
            return "is not what was sealed"
    except StoreUnavailable:
        return "is damaged"
    except NotFound:
        return "is not known any more"  # and the row says why
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _open_output(database: Database, row: Output, folder: Path) -> Fault | None:
    """While its run goes on it may have written nothing yet."""
    from corral.adapters.output.read import Output as Files

    try:
        if database.read(partial(runs.get, id=row.id)).is_live or Files(folder).exists():
            return None
    except NotFound:
        if Files(folder).exists():
            return None
    except (OSError, StoreUnavailable):
        pass
    return (
        "broken",
        f"{row.id} is over, and its output is not in {folder}; `corral recover` records that.",
    )


def _run_folders(database: Database, told: Told) -> Iterator[Fault]:
    """A run is in the store before its folder is there, and is forgotten before that goes."""
    root = config.home() / "runs"
    names = sorted(each.name for each in _inside(root) if each.name.startswith("run_"))
    unknown: list[str] = []
    for begin in range(0, len(names), PIECE):
        told("folders of runs", begin, len(names))
        piece = names[begin : begin + PIECE]
        known = database.read(partial(integrity.known_runs, ids=piece))
        unknown += [name for name in piece if name not in known and (root / name).exists()]
    if unknown:
        yield (
            "warning",
            f"Folders in {root} of no run of this store: {len(unknown):,}, as {unknown[0]}; "
            f"unless another store has this home, `rm -r {root / unknown[0]}` removes it.",
        )


def _inside(root: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(root) as found:
            return [each for each in found if each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _attachments(database: Database, told: Told) -> Iterator[Fault]:
    from corral.adapters import attachments
    from corral.domain.settings import ops as settings
    from corral.services.chat.attachments import own_folders

    root = config.home() / "channels"
    left = {
        str(path)
        for folder in own_folders(database)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    keep_ms = database.read(lambda tx: int(settings.value(tx, "messages.keep_ms")))
    forgotten = database.clock.now() - 2 * keep_ms
    after = 0
    while page := database.read(partial(integrity.messages, after=after)):
        for each in page:
            told("attachments", each.seq, each.seq)
            for file in attachments.kept_of(each.data):
                left.discard(file.path or "")
                why = attachments.changed(file, root)
                # Where several machines share a store, another one may have it.
                elsewhere = why == attachments.GONE and database.keeps_output
                if why and not elsewhere and each.created_at >= forgotten:
                    yield (
                        "broken",
                        f"{file.name!r} of msg_{each.seq} {why}: {file.path}; `corral message show "
                        f"msg_{each.seq}` has what was said with it.",
                    )
        after = page[-1].seq
    # One that is written just now has no message yet; what is old enough is removed by itself.
    old = sorted(path for path in left if _touched(path) < forgotten)
    if old:
        yield (
            "warning",
            f"{len(old):,} files in {root} are of no message, as {old[0]}; `corral db prune` "
            "removes them.",
        )


def _touched(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns // 1_000_000
    except OSError:
        return 1 << 62  # it is gone


def _boxes(database: Database, told: Told) -> Iterator[Fault]:
    from corral.services.chat import sandbox_sync

    gone = [str(path) for path in sandbox_sync.forgotten(database)]
    if gone:
        yield (
            "warning",
            f"{len(gone):,} folders of boxed sessions are of sessions that were forgotten, as "
            f"{gone[0]}; `corral db prune` removes them.",
        )
    if database.keeps_output:
        return  # another machine may have them
    after = ""
    while page := database.read(partial(integrity.boxed, after=after)):
        for id in page:
            if not os.path.isdir(sandbox_sync.folder_of(id).top):
                yield (
                    "warning",
                    f"The folder of the boxed session {id} is gone, with what its agent kept there "
                    f"and had not said yet; its next run makes it anew, see `corral session show "
                    f"{id}`.",
                )
        after = page[-1]


def _worktrees(database: Database, told: Told) -> Iterator[Fault]:
    from corral.services.races import cleanup
    from corral.services.tasks import cleanup as tasks_cleanup

    told("worktrees", 0, 1)
    for race_id, worktree in cleanup.missing(database):
        yield (
            "warning",
            f"The worktree {worktree} of {race_id} is gone; `corral race clean {race_id} --yes` "
            "records that.",
        )
    for orphan in cleanup.orphaned(database):
        yield (
            "warning",
            f"No attempt works in {orphan.folder}; `corral race clean --orphans` shows what it "
            "holds.",
        )
    for project_id, folder in tasks_cleanup.strays(database):
        yield (
            "warning",
            f"No task of this store works in {folder}; `corral task clean --project {project_id}` "
            "shows what it holds.",
        )
