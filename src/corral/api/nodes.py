"""Operations of `store.nodes`."""

from corral.api.operation import Resource, read, write
from corral.api.policy import FOR_DAEMON
from corral.domain.nodes import ops


class Nodes(Resource):
    """Nodes: the machines whose daemon serves this store, and the leader of each loop."""

    noun = "node"

    join = write(ops.join, local=FOR_DAEMON)
    heartbeat = write(ops.heartbeat, mode="one", repeatable=True, local=FOR_DAEMON)
    renew = write(ops.renew, repeatable=True, local=FOR_DAEMON)
    leave = write(ops.leave, local=FOR_DAEMON)
    mark_lost = write(ops.mark_lost, repeatable=True, local=FOR_DAEMON)
    get = read(ops.get)
    list = read(ops.list_nodes, mode="one")
    daemon_of = read(ops.daemon_of, mode="one")
    leaders = read(ops.list_leaders, mode="one")
    acquire_leadership = write(
        ops.acquire_leadership, mode="one", repeatable=True, local=FOR_DAEMON
    )
    release_leadership = write(
        ops.release_leadership, mode="one", repeatable=True, local=FOR_DAEMON
    )
