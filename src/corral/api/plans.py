"""Operations of `store.plans` and `store.progress`."""

from corral.api.operation import Resource, read, write
from corral.domain.plans import ops
from corral.services.plans import report_progress, set_plan


class Plans(Resource):
    """The plans that agents publish."""

    noun = "plan"

    set = write(set_plan, repeatable=True)
    get = read(ops.get_plan)
    list = read(ops.list_plans, mode="one")


class Progress(Resource):
    """The progress that agents report."""

    noun = "progress"

    report = write(report_progress, repeatable=True)
    list = read(ops.list_progress)
