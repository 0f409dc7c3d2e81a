"""Plans and progress reports of agents.

A plan is the list of steps that an agent published last. Both are self-reported by the agent; they
prove nothing and never change the state of a task.
"""

import msgspec

from corral.kernel.errors import Invalid


class PlanStep(msgspec.Struct, frozen=True):
    """One step of a plan."""

    content: str
    status: str = "pending"
    """pending, in_progress or completed, as in the Agent Client Protocol."""
    priority: str = "medium"
    """high, medium or low."""


class Plan(msgspec.Struct, frozen=True):
    """The steps that an agent, or a run without an agent, published last."""

    subject: str
    """Id of the agent, or of the run without an agent."""
    run_id: str | None
    """The run that published it."""
    project_id: str | None
    entries: list[PlanStep]
    """The steps, in order."""
    updated_at: int


class ProgressReport(msgspec.Struct, frozen=True):
    """The last progress report of an agent about a task, or in general."""

    id: str
    """AGENT/TASK; without a task, AGENT/."""
    agent_id: str
    task_id: str | None
    """The task; None: a general report."""
    run_id: str | None
    """The run that reported it."""
    project_id: str | None
    summary: str
    percent: int | None
    """0 to 100; None: not reported."""
    updated_at: int


MAX_STEPS = 1_000


def parse_steps(data: object) -> list[PlanStep]:
    """Convert records, objects or plain texts to steps. Raises Invalid."""
    if not isinstance(data, list | tuple):
        raise Invalid("A plan is a list of steps, each with content and status.")
    if len(data) > MAX_STEPS:
        raise Invalid(f"A plan can have at most {MAX_STEPS:,} steps, not {len(data):,}.")
    steps = [{"content": step} if isinstance(step, str) else step for step in data]
    try:
        return msgspec.convert(steps, list[PlanStep], from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(f"Invalid plan: {error}.") from None
