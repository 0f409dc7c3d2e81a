from corral.api.operation import Room, read, write
from corral.domain.alerts import ops


class Alerts(Room):
    """Who is told of what."""

    noun = "alert"

    add = write(ops.add)
    remove = write(ops.remove)
    raise_alert = write(ops.raise_alert, repeatable=True)
    test = write(ops.test)
    get = read(ops.get)
    list = read(ops.list_alerts, mode="one")

    def see_to_delivery(self) -> bool:
        """Start delivering what alerts have to tell, in a process of its own; False: there is no
        alert. With a daemon, its courier does the same."""
        if not self.list(limit=1).items:
            return False
        from corral.adapters.calls import call

        call(self._database.address, "alert", "deliver")
        return True
