"""Clean-up after a run has ended.

The supervisor of the run calls `clean_up`; recovery calls it when the supervisor died first. Every
step is idempotent.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.domain.outputs.model import OutputState
from corral.domain.runs import ops
from corral.domain.runs.model import Run
from corral.kernel.errors import NotFound, Refused
from corral.services.runs import dispatch
from corral.services.runs.outputs import get_output, seal_output

if TYPE_CHECKING:
    from corral.db.database import Database


def clean_up(database: "Database", run: Run, *, secrets: Sequence[str] = ()) -> None:
    """Finish the work that a run left when it ended. Idempotent; any process may call it.

    Releases its tasks and locks, records the end of its race attempt, starts the next queued runs,
    delivers alerts, and indexes and seals its output. `secrets` are redacted from the output.
    Modules of tasks, locks and races are imported only if the run has any: most runs have none.
    """
    if not run.is_live:
        _release_tasks(database, run)
        _end_race_attempt(database, run)
    dispatch.start_queued(database)
    if run.is_live:
        return
    from corral.services.alerts import start_delivery

    _release_locks(database, run)
    start_delivery(database)
    # NotFound: a recorded process or a deleted run has no output. Refused: it is on another
    # machine, or there is no disk space to seal it; then a later call seals it.
    with suppress(NotFound, Refused):
        if get_output(database, run.id).state is OutputState.OPEN and run.provider == "plain":
            from corral.services.runs.output_index import index_output

            index_output(database, run, secrets)
        from corral.adapters.output.redact import Redactor

        cap = database.read(lambda tx: ops.get_launch(tx, run.id)).max_output_bytes
        seal_output(database, run.id, cap=cap, redactor=lambda: Redactor(secrets))


def _release_tasks(database: "Database", run: Run) -> None:
    from corral.domain.tasks import heartbeat as tasks

    if database.read(lambda tx: tasks.has_tasks(tx, run.id)):
        from corral.domain.tasks import lifecycle

        reason = f"its run {run.id} ended ({run.state}) without a submit"
        database.write(lambda tx: lifecycle.release_for_run(tx, run.id, reason))


def _release_locks(database: "Database", run: Run) -> None:
    from corral.domain.locks import heartbeat as locks

    if database.read(lambda tx: locks.has_locks(tx, run.id), mode="one"):
        from corral.services.locks.acquisition import release_for_run

        release_for_run(database, run.id)


def _end_race_attempt(database: "Database", run: Run) -> None:
    from corral.domain.races import run_lookup as races

    if database.read(lambda tx: races.has_attempt(tx, run.id), mode="one"):
        from corral.domain.races import round_steps

        database.write(lambda tx: round_steps.record_run_end(tx, run))
