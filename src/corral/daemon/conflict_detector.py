"""Detection of merge conflicts between the worktrees of agents, before they merge."""

from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 300.0


class ConflictDetector(BaseLoop):
    """Merges the live worktrees of this machine on trial, and notifies agents of conflicts."""

    name = "conflict_detector"
    needs_leader = False  # each machine checks its own worktrees
    min_interval = 60.0  # trial merges are expensive and not urgent

    def run_once(self, store: Corral) -> int:
        return len(store.internal.locks.forecast_live())

    def next_delay(self, store: Corral) -> float:
        # Running agents commit heartbeats, and each commit wakes this loop.
        return MAX_SLEEP
