"""Operations of `store.internal.nodes`."""

from corral.api.operation import Resource, write
from corral.domain.nodes import ops


class InternalNodes(Resource):
    """Registration, heartbeats and leadership of daemons."""

    noun = "node"

    join = write(ops.join)
    heartbeat = write(ops.heartbeat, mode="one", repeatable=True)
    renew = write(ops.renew, repeatable=True)
    leave = write(ops.leave)
    mark_lost = write(ops.mark_lost, repeatable=True)
    acquire_leadership = write(ops.acquire_leadership, mode="one", repeatable=True)
    release_leadership = write(ops.release_leadership, mode="one", repeatable=True)
