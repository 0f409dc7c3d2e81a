"""Operations of `store.alerts`."""

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import FOR_DAEMON, FOR_SUPERVISORS
from corral.domain.alerts import ops


class Alerts(Resource):
    """Alerts: notifications that are sent when something needs attention."""

    noun = "alert"

    add = write(ops.add, people_only=True)
    remove = write(ops.remove, people_only=True)
    raise_alert = write(ops.raise_alert, repeatable=True, local=FOR_SUPERVISORS)
    test = write(ops.send_test, people_only=True)
    get = read(ops.get)
    list = read(ops.list_alerts, mode="one")

    @operation(local=FOR_DAEMON)
    def start_delivery(self) -> bool:
        """Start a process that delivers pending alerts; returns False when there are no alerts.

        Idempotent: an alert is delivered once, by this process or by the daemon.
        """
        from corral.services.alerts import start_delivery

        return start_delivery(self._database)
