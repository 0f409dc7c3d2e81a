"""A plan is the list of steps that an agent published last; progress is how far it says it is.

Both are what the agent says of itself, and no proof of anything.
"""

import msgspec

from corral.kernel.errors import Invalid


class Step(msgspec.Struct, frozen=True):
    content: str
    status: str = "pending"
    """pending, in_progress or completed, as the protocols of agents have it."""
    priority: str = "medium"


class Plan(msgspec.Struct, frozen=True):
    subject: str
    run_id: str | None
    project_id: str | None
    entries: list[Step]
    updated_at: int


class Progress(msgspec.Struct, frozen=True):
    id: str
    agent_id: str
    task_id: str | None
    run_id: str | None
    project_id: str | None
    summary: str
    percent: int | None
    updated_at: int


MAX_STEPS = 1_000


def read_steps(given: object) -> list[Step]:
    """Steps as records, objects or plain texts; Invalid names what is wrong."""
    if not isinstance(given, list | tuple):
        raise Invalid("A plan is a list of steps, each with content and status.")
    if len(given) > MAX_STEPS:
        raise Invalid(f"A plan has at most {MAX_STEPS:,} steps, not {len(given):,}.")
    plain = [{"content": step} if isinstance(step, str) else step for step in given]
    try:
        return msgspec.convert(plain, list[Step], from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(f"This plan cannot be: {error}.") from None
