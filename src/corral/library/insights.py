from corral.insights import looking_back, moments, ops
from corral.library.operation import Room, read


class Insights(Room):
    """Read-only questions across rooms."""

    noun = "insight"

    overview = read(ops.overview)
    project = read(ops.project)
    crashed = read(ops.crashed, mode="one")
    stats = read(ops.stats, mode="one")
    look_back = read(looking_back.look_back)
    names = read(ops.names, mode="one")
    named = read(ops.named)
    costs = read(ops.costs, mode="one")
    task_costs = read(ops.task_costs)
    task_cost = read(ops.task_cost)
    moment = read(moments.moment)
    races = read(ops.races)
