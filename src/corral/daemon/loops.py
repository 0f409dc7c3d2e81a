"""The table of all loops of a daemon.

A loop that needs no state is a row here. The others have a module of their own.
"""

from collections.abc import Callable

from corral.adapters.processes import process
from corral.api import Corral
from corral.api.alert_delivery import deliver_once, find_next_due
from corral.daemon.chat import ChatLoop
from corral.daemon.janitor import Janitor
from corral.daemon.loop import BaseLoop, Loop
from corral.daemon.node_monitor import NodeMonitor
from corral.daemon.race_driver import RaceLoop
from corral.daemon.reaper import Reaper
from corral.daemon.scheduler import Scheduler, ScheduleScripts
from corral.daemon.telemetry import Telemetry
from corral.kernel.deadline import seconds_until

MAX_SLEEP = 30.0  # seconds, in case a wake-up is lost
CONFLICT_SLEEP = 300.0
INDEX_BATCHES = 5
INDEX_SLEEP = 1.0


class SimpleLoop(BaseLoop):
    """A loop without state: a function that does what is due and returns how much it did."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[Corral], int],
        *,
        needs_leader: bool,
        min_interval: float = BaseLoop.min_interval,
        next_delay: Callable[[Corral], float] = lambda store: MAX_SLEEP,
    ) -> None:
        """By default, commits wake the loop and its next round is at most MAX_SLEEP away."""
        self.name = name
        self.needs_leader = needs_leader
        self.min_interval = min_interval
        self._run_once = run_once
        self._next_delay = next_delay

    def run_once(self, store: Corral) -> int:
        return self._run_once(store)

    def next_delay(self, store: Corral) -> float:
        return self._next_delay(store)


def create_loops() -> list[Loop]:
    """Create all loops of a daemon.

    With `needs_leader`, one daemon of the store runs the loop. The other loops run on each machine:
    they start processes or read files there.
    """
    return [
        # Only a due time passes without a commit; everything else wakes the dispatcher.
        SimpleLoop(
            "dispatcher",
            start_queued_runs,
            needs_leader=False,
            next_delay=lambda store: seconds_until(
                store, store.runs.next_due(), at_least=0.001, at_most=MAX_SLEEP
            ),
        ),
        Reaper(),
        Scheduler(),
        ScheduleScripts(),
        SimpleLoop(
            "alert_sender",
            deliver_alerts,
            needs_leader=True,
            min_interval=0.1,
            next_delay=lambda store: seconds_until(store, find_next_due(store), at_most=MAX_SLEEP),
        ),
        ChatLoop(),
        # An open transaction may still add an older turn; the newer ones wait for its end.
        SimpleLoop(
            "indexer",
            index_turns,
            needs_leader=True,
            min_interval=1.0,
            next_delay=lambda store: INDEX_SLEEP if store.search.count_unindexed() else MAX_SLEEP,
        ),
        Janitor(),
        NodeMonitor(),
        # A task that becomes ready, or a slot that becomes free, is a commit.
        SimpleLoop("task_starter", start_ready_tasks, needs_leader=False, min_interval=0.5),
        # A submission is a commit; only a task whose checker crashed needs the timeout.
        SimpleLoop("task_checker", check_next_task, needs_leader=False),
        RaceLoop(),
        # Trial merges are expensive and not urgent. Running agents commit heartbeats, and each
        # commit wakes the loop.
        SimpleLoop(
            "conflict_detector",
            detect_conflicts,
            needs_leader=False,
            min_interval=60.0,
            next_delay=lambda store: CONFLICT_SLEEP,
        ),
        Telemetry(),
    ]


def start_queued_runs(store: Corral) -> int:
    """Start queued runs that are due, match this machine's labels, and have a free slot."""
    return len(store.runs.start_queued())


def deliver_alerts(store: Corral) -> int:
    """Deliver the due letters of all alerts."""
    return len(deliver_once(store, process.identify_self().as_owner("alert_sender")))


def index_turns(store: Corral) -> int:
    """Add new turns to the full-text index, so that their writers need not wait for it."""
    return store.search.catch_up(batches=INDEX_BATCHES) if store.search.count_unindexed() else 0


def start_ready_tasks(store: Corral) -> int:
    """Start ready tasks in projects that enable it, each in a worktree of its own."""
    return len(store.internal.tasks.start_ready())


def check_next_task(store: Corral) -> int:
    """Run the check of one submitted task whose work was done on this machine."""
    return 0 if store.tasks.check_next() is None else 1


def detect_conflicts(store: Corral) -> int:
    """Merge the live worktrees of this machine on trial, and notify agents of conflicts."""
    return len(store.internal.locks.forecast_live())
