from corral.api.operation import Room, read, write
from corral.domain.nodes import ops


class Nodes(Room):
    """Machines that serve this store, and who leads each loop."""

    noun = "node"

    join = write(ops.join)
    heartbeat = write(ops.heartbeat, mode="one", repeatable=True)
    beat = write(ops.beat, repeatable=True)
    leave = write(ops.leave)
    lose_silent = write(ops.lose_silent, repeatable=True)
    get = read(ops.get)
    list = read(ops.list_nodes, mode="one")
    serving = read(ops.serving, mode="one")
    leaders = read(ops.leaders, mode="one")
    take_lead = write(ops.take_lead, mode="one", repeatable=True)
    yield_lead = write(ops.yield_lead, mode="one", repeatable=True)
