"""Operations of `store.plans` and `store.progress`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.domain.plans import ops
from corral.services.plans import report_progress, set_plan


class Plans(Resource):
    """The plans that agents publish."""

    noun = "plan"
    subjects = ("of",)

    set = write(
        set_plan, repeatable=True, actor=("agent",), agent=rules.as_agent, objects={"run": "runs"}
    )
    get = read(ops.get_plan, agent=rules.allow)
    list = read(ops.list_plans, mode="one")


class Progress(Resource):
    """The progress that agents report."""

    noun = "progress"

    report = write(
        report_progress,
        repeatable=True,
        actor=("agent",),
        agent=rules.as_agent,
        objects={"task": "tasks", "run": "runs"},
    )
    list = read(ops.list_progress, agent=rules.as_reporter, objects={"task_id": "tasks"})
