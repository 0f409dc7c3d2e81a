"""Operations of `store.internal.alerts`."""

from corral.api.operation import Resource, operation, write
from corral.domain.alerts import ops


class InternalAlerts(Resource):
    """Alerts that supervisors and recovery raise, and their delivery."""

    noun = "alert"

    raise_alert = write(ops.raise_alert, repeatable=True)

    @operation()
    def start_delivery(self) -> bool:
        """Start a process that delivers pending alerts; returns False when there are no alerts.

        Idempotent: an alert is delivered once, by this process or by the daemon.
        """
        from corral.services.alerts import start_delivery

        return start_delivery(self._database)
