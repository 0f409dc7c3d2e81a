"""Operations of `store.insights`."""

from corral.api.operation import Resource, read
from corral.domain.insights import board_history, ops, retrospectives


class Insights(Resource):
    """Read-only reports over several concepts."""

    noun = "insight"

    overview = read(ops.get_overview)
    project = read(ops.get_project, paths=("dir",))
    crashed = read(ops.list_crashed, mode="one")
    stats = read(ops.list_stats, mode="one")
    retrospective = read(retrospectives.build_retrospective)
    names = read(ops.resolve_names, mode="one")
    find_by_name = read(ops.find_by_name)
    costs = read(ops.list_costs, mode="one")
    task_costs = read(ops.list_task_costs)
    task_cost = read(ops.get_task_cost)
    board_at = read(board_history.get_board_at)
    races = read(ops.list_races)
