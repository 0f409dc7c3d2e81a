"""Machines that went silent are lost, and what they ran is given up or started elsewhere."""

from corral.adapters import process
from corral.api import Corral
from corral.daemon.loop import Plain
from corral.domain.nodes.model import NodeState
from corral.domain.runs.model import RunState

ALONE, TOGETHER = 30.0, 2.0  # seconds between looks: nobody tells of silence


class Lookout(Plain):
    """A node is lost when its daemon is silent past its lease. That says nothing of its runs: each
    of them has a keeper with a lease of its own, and goes on while that one is renewed."""

    name = "lookout"
    rest = 1.0

    def round(self, store: Corral) -> int:
        lost = len(store.nodes.lose_silent())
        if not _somebody_else(store):
            return lost
        return lost + len(store.runs.recover())

    def pause(self, store: Corral) -> float:
        return TOGETHER if _somebody_else(store) else ALONE


def _somebody_else(store: Corral) -> bool:
    """Whether other machines serve this store, or run something of it."""
    here = process.host()
    if any(
        node.state is NodeState.UP and node.name != here
        for node in store.nodes.list(limit=50).items
    ):
        return True
    return any(
        run.state is not RunState.QUEUED and run.host != here
        for run in store.runs.list(live=True, limit=200).items
    )
