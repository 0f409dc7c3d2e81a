"""What alerts have to tell leaves the house: each letter to its webhook, command or screen."""

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from corral.adapters import notify, process
from corral.api import Corral
from corral.daemon.loop import Plain
from corral.domain.alerts.model import Alert, Target
from corral.domain.mail.model import Letter
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Conflict, CorralError
from corral.kernel.pagination import every

# Longer than any way of telling may take, so that nobody else takes the letter meanwhile.
LEASE_MS = 2 * MINUTE
# Of one alert in one round, so that one busy alert does not keep the others waiting.
ROUND = 20
LONGEST_SLEEP = 30.0
STRANGE = "it is no letter of an alert: somebody put it there"


class Courier(Plain):
    name = "courier"
    rest = 0.1

    def round(self, store: Corral) -> int:
        return len(deliver_once(store, f"courier:{process.host()}:{os.getpid()}"))

    def pause(self, store: Corral) -> float:
        return _pause(store)


class Delivery(msgspec.Struct, frozen=True):
    """What became of one letter."""

    alert_id: str
    letter_id: str
    state: str
    """done; waiting: it failed and is tried again at `due_at`; dead: it failed too often; refused:
    it was a test, and failed, or is no letter of an alert."""
    error: str | None
    due_at: int | None


def deliver_once(store: Corral, owner: str, *, only: str | None = None) -> list[Delivery]:
    """Take what is due from the mailbox of every active alert, or of one, and deliver it.

    An attempt that fails is tried again after the mail's pause, and is a dead letter at its limit.
    Whoever dies in between leaves a lease that runs out, so a receiver may see a letter twice: its
    id is in what is sent.
    """
    told: list[Delivery] = []
    for alert in _alerts(store, only):
        for _ in range(ROUND):
            delivery = _deliver_next(store, alert, owner)
            if delivery is None:
                break
            told.append(delivery)
            if delivery.state != "done":
                break
    return told


def deliver_test(store: Corral, owner: str, letter: Letter) -> Delivery | None:
    """Deliver the letter of a test now, once: one that fails has told what was to be learned.

    None when another courier has it.
    """
    alert = store.alerts.get(letter.body["alert"])
    taken = store.mail.claim(letter.mailbox, owner=owner, limit=ROUND, lease_ms=LEASE_MS)
    said = None
    for one in taken:  # earlier ones were left by whoever died over them
        error = _tell(store, alert, one) if one.id == letter.id else "a later test took its place"
        ended = store.mail.ack(one) if error is None else store.mail.refuse(one, error)
        said = Delivery(alert.id, one.id, ended.state, error, None)
    return said


def waiting(store: Corral) -> list[Delivery]:
    """The letters that are next to be told by each alert, and when."""
    letters = []
    for alert in _alerts(store, None):
        for letter in store.mail.list(mailbox=alert.mailbox, limit=1).items:
            letters.append(
                Delivery(alert.id, letter.id, letter.state, letter.last_error, letter.due_at)
            )
    return letters


def run_courier(store: Corral, owner: str) -> Iterator[Delivery]:
    """Deliver for ever; yields what became of each letter."""
    with store.listening() as listener:
        while True:
            told = deliver_once(store, owner)
            yield from told
            if not told:
                listener.wait(_pause(store))


def _alerts(store: Corral, only: str | None) -> Iterator[Alert]:
    if only is not None:
        yield store.alerts.get(only)
        return
    for alert in every(store.alerts.list, limit=200):
        if alert.target_kind is not Target.MAILBOX:
            yield alert


def _deliver_next(store: Corral, alert: Alert, owner: str) -> Delivery | None:
    due = store.mail.next_due(alert.mailbox)
    if due is None or due > store.now():
        return None
    letters = store.mail.claim(alert.mailbox, owner=owner, lease_ms=LEASE_MS)
    if not letters:
        return None
    letter = letters[0]
    try:
        if not isinstance(letter.body, dict) or "kind" not in letter.body:
            error: str | None = STRANGE
            said = store.mail.refuse(letter, STRANGE)
        else:
            error = _tell(store, alert, letter)
            said = store.mail.ack(letter) if error is None else store.mail.fail(letter, error)
    except Conflict:
        return None  # somebody dropped it, or took it over, while it was being told
    return Delivery(
        alert.id, letter.id, said.state, error, said.due_at if said.state == "waiting" else None
    )


def _tell(store: Corral, alert: Alert, letter: Letter) -> str | None:
    """Tell one letter; the reason when it could not be told."""
    body = msgspec.json.encode({"letter": letter.id, **letter.body})
    try:
        if alert.target_kind is Target.WEBHOOK:
            secret = store.secrets.resolve(alert.secret) if alert.secret else None
            notify.post(_url(store, alert.target), body, at=store.now(), secret=secret)
        elif alert.target_kind is Target.COMMAND:
            notify.run(alert.target, body)
        else:
            notify.show(*_headline(letter.body))
    except (notify.Undelivered, CorralError) as error:
        return str(error)
    return None


def _url(store: Corral, target: str) -> str:
    if target.startswith("secret:"):
        return store.secrets.resolve(target.removeprefix("secret:"))
    return target


def _headline(body: Any) -> tuple[str, str]:
    """A title and a line, as a screen shows them."""
    data = body.get("data") or {}
    why = data.get("reason") if isinstance(data, dict) else None
    kind = str(body["kind"]).replace("_", " ")
    return f"corral: {kind}", f"{body['subject']}{f': {why}' if why else ''}"[:500]


def _pause(store: Corral) -> float:
    moments = [store.mail.next_due(alert.mailbox) for alert in _alerts(store, None)]
    upcoming = min((moment for moment in moments if moment is not None), default=None)
    if upcoming is None:
        return LONGEST_SLEEP
    return min(max((upcoming - store.now()) / 1_000, 0.05), LONGEST_SLEEP)
