"""Operations of `store.internal.runs`."""

from collections.abc import Sequence

from corral.api.operation import Resource, operation, write
from corral.domain.runs import dispatch as runs_dispatch
from corral.domain.runs import ops, supervision
from corral.domain.runs.model import Run
from corral.services.runs import cleanup, dispatch, lifecycle, recovery


class InternalRuns(Resource):
    """The steps of a run: for its supervisor, the dispatcher and recovery."""

    noun = "run"

    enqueue = write(ops.enqueue)
    fail = write(ops.fail, repeatable=True)
    acquire = write(supervision.acquire)
    launch = write(supervision.launch)
    restart = write(supervision.restart)
    heartbeat = write(lifecycle.heartbeat, repeatable=True)
    request_stop = write(ops.request_stop, repeatable=True)
    take_over = write(supervision.take_over)
    set_attention = write(supervision.set_attention, repeatable=True)
    update_details = write(supervision.update_details, mode="one", repeatable=True)
    record_environment = write(supervision.record_environment, mode="one", repeatable=True)
    add_sample = write(supervision.add_sample, mode="one", repeatable=True)
    park = write(supervision.park)
    record_end = write(ops.record_end, repeatable=True)
    end_orphaned = write(ops.end_orphaned, repeatable=True)
    release_claim = write(runs_dispatch.release_claim, mode="one", repeatable=True)

    @operation()
    def drain_queue(self) -> None:
        """Start queued runs; retry while all slots are claimed, as a claimant may have crashed."""
        dispatch.start_queued_until_idle(self._database)

    @operation()
    def forward_stop(self, run: Run) -> None:
        """Notify the supervisor of a run that is being stopped; if there is none, check the run."""
        recovery.notify_supervisor_of_stop(self._database, run, None)

    @operation()
    def clean_up(self, run: Run, *, secrets: Sequence[str] = ()) -> None:
        """Finish the work that a run left when it ended. Idempotent; any process may call it.

        Releases its tasks and locks, records the end of its race attempt, starts the next queued
        runs, delivers alerts, and indexes and seals its output. `secrets` are redacted from it.
        """
        cleanup.clean_up(self._database, run, secrets=secrets)
