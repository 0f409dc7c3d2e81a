"""Operations of `store.nodes`."""

from corral.api.operation import Resource, read
from corral.domain.nodes import ops


class Nodes(Resource):
    """Nodes: the machines whose daemon serves this store, and the leader of each loop."""

    noun = "node"
    subjects = ("id",)

    get = read(ops.get)
    list = read(ops.list_nodes, mode="one")
    daemon_of = read(ops.daemon_of, mode="one")
    leaders = read(ops.list_leaders, mode="one")
