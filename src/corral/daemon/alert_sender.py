"""The loop that delivers the letters of all alerts."""

from corral.adapters import process
from corral.api import Corral
from corral.daemon.alert_delivery import deliver_once, seconds_until_due
from corral.daemon.loop import BaseLoop


class AlertSender(BaseLoop):
    """Delivers due letters of all alerts."""

    name = "alert_sender"
    min_interval = 0.1

    def run_once(self, store: Corral) -> int:
        return len(deliver_once(store, process.identify_self().as_owner("alert_sender")))

    def next_delay(self, store: Corral) -> float:
        return seconds_until_due(store)
