from corral.api.operation import Room, read
from corral.domain.insights import board_history, ops, retrospective


class Insights(Room):
    """Read-only questions across rooms."""

    noun = "insight"

    overview = read(ops.overview)
    project = read(ops.project)
    crashed = read(ops.crashed, mode="one")
    stats = read(ops.stats, mode="one")
    look_back = read(retrospective.look_back)
    names = read(ops.names, mode="one")
    named = read(ops.named)
    costs = read(ops.costs, mode="one")
    task_costs = read(ops.task_costs)
    task_cost = read(ops.task_cost)
    moment = read(board_history.moment)
    races = read(ops.races)
