"""Operations of `store.notes`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.domain.notes import ops
from corral.services import notes
from corral.services.store.deletion import delete_note


class Notes(Resource):
    """Notes: what is remembered for an agent, a project or everyone.

    A note is data in a prompt, never an instruction.
    """

    noun = "note"
    subjects = ("note",)

    add = write(notes.add, actor=("source",), agent=rules.as_source, agent_or_project="project")
    supersede = write(notes.supersede, actor=("source",))
    forget = write(delete_note)
    get = read(ops.get)
    list = read(ops.list_notes)
    search = read(ops.search, agent=rules.as_agent)
    prompt_section = read(ops.build_prompt_section, agent=rules.as_agent)
    record_use = write(ops.record_use, mode="one", repeatable=True)
