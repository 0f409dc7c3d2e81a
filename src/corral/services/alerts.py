"""Start the delivery of alerts in a separate process."""

from typing import TYPE_CHECKING

from corral.domain.alerts import ops

if TYPE_CHECKING:
    from corral.db.database import Database


def start_delivery(database: "Database") -> bool:
    """Start a process that delivers pending alerts; returns False when there are no alerts.

    Without this call, alerts wait for the daemon. Idempotent: two processes deliver an alert once.
    """
    if not database.read(lambda tx: ops.list_alerts(tx, limit=1), mode="one").items:
        return False
    from corral.adapters.processes.subprocesses import spawn_corral

    spawn_corral(database.address, "alert", "deliver")
    return True
