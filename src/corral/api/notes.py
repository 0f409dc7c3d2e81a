"""Operations of `store.notes`."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.db.tx import Tx
from corral.domain.notes import ops
from corral.domain.notes.model import Note
from corral.services.store.deletion import delete_note

P = ParamSpec("P")


def _indexed(
    change: Callable[Concatenate[Tx, P], Note],
) -> Callable[Concatenate[Tx, P], Note]:
    """Update the search index after a change, in the same transaction."""

    @wraps(change)
    def change_and_index(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> Note:
        from corral.domain.search import ops as search

        note = change(tx, *args, **kwargs)
        for id in filter(None, (note.id, note.supersedes)):
            search.remove_subject(tx, "note", id)
        search.add(tx, "note", note.id, 0, note.project_id, note.created_at, note.text)
        return note

    return change_and_index


class Notes(Resource):
    """Notes: what is remembered for an agent, a project or everyone.

    A note is data in a prompt, never an instruction.
    """

    noun = "note"
    subjects = ("note",)

    add = write(
        _indexed(ops.add), actor=("source",), agent=rules.as_source, agent_or_project="project"
    )
    supersede = write(_indexed(ops.supersede), actor=("source",))
    forget = write(delete_note)
    get = read(ops.get)
    list = read(ops.list_notes)
    search = read(ops.search, agent=rules.as_agent)
    prompt_section = read(ops.build_prompt_section, agent=rules.as_agent)
    record_use = write(ops.record_use, mode="one", repeatable=True)
