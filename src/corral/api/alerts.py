"""Operations of `store.alerts`."""

from corral.api.operation import Resource, read, write
from corral.domain.alerts import ops


class Alerts(Resource):
    """Alerts: notifications that are sent when something needs attention."""

    noun = "alert"
    subjects = ("id",)

    add = write(ops.add, people_only=True)
    remove = write(ops.remove, people_only=True)
    test = write(ops.send_test, people_only=True)
    get = read(ops.get)
    list = read(ops.list_alerts, mode="one")
