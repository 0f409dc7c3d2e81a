"""Runs with the state of their process checked first."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.runs.model import Run

RECOVERY_SECONDS = 5.0
"""Maximum time that a command which only reads waits for a write."""


def refresh_run(store: "Corral", id: str) -> "Run":
    """Return a run, after checking whether its supervisor is still alive."""
    run = store.runs.get(id)
    refreshed = store.try_write_before_read(
        run.id, lambda: store.runs.refresh(run), seconds=RECOVERY_SECONDS
    )
    return refreshed or run
