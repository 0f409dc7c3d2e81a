"""Operations of `store.alerts`."""

from corral.api.operation import Resource, read, write
from corral.domain.alerts import ops


class Alerts(Resource):
    """Alerts: notifications that are sent when something needs attention."""

    noun = "alert"

    add = write(ops.add)
    remove = write(ops.remove)
    raise_alert = write(ops.raise_alert, repeatable=True)
    test = write(ops.send_test)
    get = read(ops.get)
    list = read(ops.list_alerts, mode="one")

    def start_delivery(self) -> bool:
        """Start a process that delivers pending alerts; returns False when there are no alerts.

        Idempotent: an alert is delivered once, by this process or by the daemon.
        """
        from corral.services.alerts import start_delivery

        return start_delivery(self._database)
