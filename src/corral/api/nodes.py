"""Operations of `store.nodes`."""

from corral.api.operation import Resource, read, write
from corral.domain.nodes import ops


class Nodes(Resource):
    """Nodes: the machines whose daemon serves this store, and the leader of each loop."""

    noun = "node"

    join = write(ops.join)
    heartbeat = write(ops.heartbeat, mode="one", repeatable=True)
    renew = write(ops.renew, repeatable=True)
    leave = write(ops.leave)
    mark_lost = write(ops.mark_lost, repeatable=True)
    get = read(ops.get)
    list = read(ops.list_nodes, mode="one")
    daemon_of = read(ops.daemon_of, mode="one")
    leaders = read(ops.list_leaders, mode="one")
    acquire_leadership = write(ops.acquire_leadership, mode="one", repeatable=True)
    release_leadership = write(ops.release_leadership, mode="one", repeatable=True)
