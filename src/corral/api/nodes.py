"""Operations of `store.nodes`."""

from corral.api.operation import Resource, read, write
from corral.domain.nodes import ops


class Nodes(Resource):
    """Nodes: the machines whose daemon serves this store, and the leader of each loop."""

    noun = "node"

    join = write(ops.join)
    heartbeat = write(ops.heartbeat, mode="one", repeatable=True)
    beat = write(ops.heartbeat_and_lead, repeatable=True)
    leave = write(ops.leave)
    lose_silent = write(ops.mark_silent_lost, repeatable=True)
    get = read(ops.get)
    list = read(ops.list_nodes, mode="one")
    serving = read(ops.find_serving, mode="one")
    leaders = read(ops.list_leaders, mode="one")
    take_lead = write(ops.acquire_leadership, mode="one", repeatable=True)
    yield_lead = write(ops.release_leadership, mode="one", repeatable=True)
