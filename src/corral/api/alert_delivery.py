"""Delivery of alerts to webhooks, commands and desktop notifications.

The loop of the daemon and `corral alert` call it. It uses only the API, so that the command line
can deliver the alerts of a remote store too.
"""

from collections.abc import Iterator

import msgspec

from corral.adapters import notifications
from corral.api import Corral
from corral.domain.alerts.model import Alert, TargetKind
from corral.domain.mail.model import Letter
from corral.domain.mail.payloads import AlertPayload, parse_payload
from corral.kernel.clock import MINUTE
from corral.kernel.deadline import seconds_until
from corral.kernel.errors import Conflict, CorralError
from corral.kernel.pagination import iter_all

# Longer than any delivery may take, so that no other sender claims the letter meanwhile.
LEASE_MS = 2 * MINUTE
# Letters of one alert per round: a busy alert must not delay the others.
BATCH = 20
MAX_SLEEP = 30.0
NOT_AN_ALERT = "the letter was not created by an alert"


class AlertDelivery(msgspec.Struct, frozen=True):
    """The result of one delivery."""

    alert_id: str
    letter_id: str
    state: str
    """done; waiting: the delivery failed and is retried at `due_at`; dead: it failed too often;
    refused: a failed test, or a letter that was not created by an alert."""
    error: str | None
    due_at: int | None


def deliver_once(store: Corral, owner: str, *, only: str | None = None) -> list[AlertDelivery]:
    """Deliver the due letters of every active alert, or of the alert `only`.

    A failed delivery is retried with the back-off of the mail, and becomes a dead letter after the
    last attempt. At least once: if a sender dies, its lease expires and the letter is sent again.
    The receiver can deduplicate by the letter id in the payload.
    """
    deliveries: list[AlertDelivery] = []
    for alert in _iter_alerts(store, only):
        for _ in range(BATCH):
            delivery = _deliver_next(store, alert, owner)
            if delivery is None:
                break
            deliveries.append(delivery)
            if delivery.state != "done":
                break
    return deliveries


def deliver_test(store: Corral, owner: str, letter: Letter) -> AlertDelivery | None:
    """Deliver a test letter now, without retries.

    Letters of other tests, such as those left by a sender that died, are refused. Returns None when
    another sender has claimed the letter.
    """
    alert = store.alerts.get(letter.body["alert"])
    result = None
    for claimed in store.mail.claim(letter.mailbox, owner=owner, limit=BATCH, lease_ms=LEASE_MS):
        if claimed.id != letter.id:
            store.mail.refuse(claimed, "replaced by another test")
            continue
        error = _send(store, alert, claimed)
        ended = store.mail.ack(claimed) if error is None else store.mail.refuse(claimed, error)
        result = AlertDelivery(alert.id, claimed.id, ended.state, error, None)
    return result


def list_waiting(store: Corral) -> list[AlertDelivery]:
    """Return the next waiting letter of each alert."""
    deliveries = []
    for alert in _iter_alerts(store, None):
        for letter in store.mail.list(mailbox=alert.mailbox, limit=1).items:
            deliveries.append(
                AlertDelivery(alert.id, letter.id, letter.state, letter.last_error, letter.due_at)
            )
    return deliveries


def run_alert_sender(store: Corral, owner: str) -> Iterator[AlertDelivery]:
    """Deliver letters without end; yields the result of each delivery."""
    with store.listening() as listener:
        while True:
            deliveries = deliver_once(store, owner)
            yield from deliveries
            if not deliveries:
                listener.wait(seconds_until(store, find_next_due(store), at_most=MAX_SLEEP))


def _iter_alerts(store: Corral, only: str | None) -> Iterator[Alert]:
    if only is not None:
        yield store.alerts.get(only)
        return
    for alert in iter_all(store.alerts.list, limit=200):
        if alert.target_kind is not TargetKind.MAILBOX:
            yield alert


def _deliver_next(store: Corral, alert: Alert, owner: str) -> AlertDelivery | None:
    due = store.mail.next_due(alert.mailbox)
    if due is None or due > store.now():
        return None
    letters = store.mail.claim(alert.mailbox, owner=owner, lease_ms=LEASE_MS)
    if not letters:
        return None
    letter = letters[0]
    try:
        if not isinstance(parse_payload(letter), AlertPayload):
            error: str | None = NOT_AN_ALERT
            ended = store.mail.refuse(letter, NOT_AN_ALERT)
        else:
            error = _send(store, alert, letter)
            ended = store.mail.ack(letter) if error is None else store.mail.fail(letter, error)
    except Conflict:
        return None  # the letter was dropped, or claimed by another sender, during the delivery
    due_at = ended.due_at if ended.state == "waiting" else None
    return AlertDelivery(alert.id, letter.id, ended.state, error, due_at)


def _send(store: Corral, alert: Alert, letter: Letter) -> str | None:
    """Send one letter to the target of its alert; return the error, or None."""
    body = msgspec.json.encode({"letter": letter.id, **letter.body})
    try:
        if alert.target_kind is TargetKind.WEBHOOK:
            secret = store.secrets.resolve(alert.secret) if alert.secret else None
            notifications.post_webhook(
                _resolve_url(store, alert.target), body, at=store.now(), secret=secret
            )
        elif alert.target_kind is TargetKind.COMMAND:
            notifications.run_command(alert.target, body)
        else:
            notifications.show_on_desktop(*_build_headline(letter))
    except (notifications.Undelivered, CorralError) as error:
        return str(error)
    return None


def _resolve_url(store: Corral, target: str) -> str:
    if target.startswith("secret:"):
        return store.secrets.resolve(target.removeprefix("secret:"))
    return target


def _build_headline(letter: Letter) -> tuple[str, str]:
    """Return the title and text of a desktop notification."""
    alert = parse_payload(letter)
    assert isinstance(alert, AlertPayload)
    reason = alert.data.get("reason") if isinstance(alert.data, dict) else None
    event = alert.event.replace("_", " ")
    return f"corral: {event}", f"{alert.subject}{f': {reason}' if reason else ''}"[:500]


def find_next_due(store: Corral) -> int | None:
    """Return when the next letter of an alert is due; None if no letter waits."""
    times = [store.mail.next_due(alert.mailbox) for alert in _iter_alerts(store, None)]
    return min((time for time in times if time is not None), default=None)
