"""Operations of `store.internal.locks`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, write
from corral.domain.locks import ops
from corral.domain.locks.model import Lock
from corral.services.locks import acquisition

if TYPE_CHECKING:
    from corral.services.locks.conflict_forecast import MergeConflict


class InternalLocks(Resource):
    """Expiry and release of locks, and the forecast of merge conflicts."""

    noun = "lock"

    expire_due = write(ops.expire_due, repeatable=True)

    @operation()
    def release_for_run(self, run: str) -> Sequence[Lock]:
        """Release everything that a run has locked or waits for. Idempotent."""
        return acquisition.release_for_run(self._database, run)

    @operation()
    def forecast_live(self) -> Sequence["MergeConflict"]:
        """Find worktrees that would conflict if they were merged, in every repository with runs.

        Considers the repositories of this machine. Owners are notified once for each pair.
        """
        from corral.services.locks.conflict_forecast import forecast_live

        return forecast_live(self._database)
