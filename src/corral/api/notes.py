from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.notes import ops
from corral.domain.notes.model import Note

P = ParamSpec("P")


def _findable(
    change: Callable[Concatenate[Tx, P], Note],
) -> Callable[Concatenate[Tx, P], Note]:
    """A new note whose words the search finds, and no more those of the one in whose place it
    came."""

    @wraps(change)
    def changed(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> Note:
        from corral.domain.search import ops as search

        note = change(tx, *args, **kwargs)
        for id in filter(None, (note.id, note.supersedes)):
            search.forget(tx, "note", id)
        search.add(tx, "note", note.id, 0, note.project_id, note.created_at, note.text)
        return note

    return changed


def forget(tx: Tx, note: str) -> Note:
    """Remember it no more: its words are gone from the store, and the search."""
    from corral.domain.search import ops as search

    gone = ops.forget(tx, note)
    search.forget(tx, "note", gone.id)
    return gone


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget what was remembered for a project."""
    while found := ops.of_project(tx, project_id):
        for id in found:
            forget(tx, id)


class Notes(Room):
    """What is remembered."""

    noun = "note"

    add = write(_findable(ops.add))
    supersede = write(_findable(ops.supersede))
    forget = write(forget)
    get = read(ops.get)
    list = read(ops.list_notes)
    search = read(ops.search)
    section = read(ops.section)
    use = write(ops.use, mode="one", repeatable=True)
