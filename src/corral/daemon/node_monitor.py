"""Detection of machines that are lost, and recovery of their runs."""

from corral.adapters.processes import process
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.domain.nodes.model import NodeState
from corral.domain.runs.model import RunState

# Seconds between two checks: the silence of a machine causes no event.
SINGLE_NODE_SECONDS, MULTI_NODE_SECONDS = 30.0, 2.0


class NodeMonitor(BaseLoop):
    """Marks nodes as lost whose daemon has not renewed its lease.

    A lost node says nothing about its runs: the supervisor of each run has a lease of its own, and
    the run continues while that lease is renewed.
    """

    name = "node_monitor"
    min_interval = 1.0

    def run_once(self, store: Corral) -> int:
        lost = len(store.internal.nodes.mark_lost())
        if not _has_other_machines(store):
            return lost
        return lost + len(store.runs.recover())

    def next_delay(self, store: Corral) -> float:
        return MULTI_NODE_SECONDS if _has_other_machines(store) else SINGLE_NODE_SECONDS


def _has_other_machines(store: Corral) -> bool:
    """Whether other machines serve this store, or have live runs of it."""
    host = process.host()
    if any(
        node.state is NodeState.UP and node.name != host
        for node in store.nodes.list(limit=50).items
    ):
        return True
    return any(
        run.state is not RunState.QUEUED and run.host != host
        for run in store.runs.list(live=True, limit=200).items
    )
