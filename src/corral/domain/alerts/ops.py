"""Adding alerts, and putting the letters that tell of an edge."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.alerts import sql
from corral.domain.alerts.model import Alert, Kind, Target, check_target
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, check_mailbox
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid, Refused
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

# Every edge asks each of them, so there may not be endlessly many.
MAX_ALERTS = 1_000
MAX_EDGE = 60
MAX_DATA = 64 * 1024

E = TypeVar("E", bound=StrEnum)
KEPT = sql.KEPT


def add(
    tx: Tx,
    kinds: Sequence[str],
    *,
    target_kind: str,
    target: str = "",
    project: str | None = None,
    agent: str | None = None,
    secret: str | None = None,
) -> Alert:
    """Have somebody told of crashed, failed, stuck, needs_input, budget or finished runs, and of
    undelivered messages.

    The target is a webhook (its URL, or secret:NAME), a command, the desktop or a mailbox. With
    `secret`, the name of a secret, a webhook is signed.
    """
    chosen = [_one_of(Kind, kind) for kind in kinds]
    if not chosen:
        raise Invalid(f"Say what is to be told: {', '.join(Kind)}.")
    how = _one_of(Target, target_kind)
    check_target(how, target)
    if how is Target.MAILBOX:
        target = mail.open_mailbox(tx, check_mailbox(target))
    if secret is not None:
        settings.check_secret_name(secret)
        if how is not Target.WEBHOOK:
            raise Invalid("Only a webhook is signed; leave the secret out.", secret=secret)
        settings.get_secret(tx, secret)  # a name that nobody has set would fail at every sending
    tx.serialize("alerts")
    if tx.value(sql.COUNT_ACTIVE) >= MAX_ALERTS:
        raise Refused(
            f"There are {MAX_ALERTS} alerts, and more are not allowed; remove one first "
            "(`corral alert list`).",
            limit=MAX_ALERTS,
        )
    made = create(
        tx,
        sql.ALERTS,
        {
            "id": tx.new_id("alr"),
            "kinds": encode_json([kind for kind in Kind if kind in chosen], "The kinds"),
            "project_id": _id(project, "The project"),
            "agent_id": _id(agent, "The agent"),
            "target_kind": how,
            "target": target,
            "secret": secret,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        note={"target_kind": how, "kinds": chosen},
    )
    assert made is not None
    return made


def remove(tx: Tx, id: str) -> Alert:
    """Tell nothing any more. What waited to be told is dropped, and says so."""
    removed = move(tx, sql.ALERTS, "remove", sql.IDS.resolve(tx, id), ended_at=tx.now)
    if removed.target_kind is not Target.MAILBOX:
        for mailbox in (removed.mailbox, removed.test_mailbox):
            mail.drop_waiting(tx, mailbox, reason=f"{removed.id} was removed")
    return removed


def raise_alert(
    tx: Tx,
    kind: str,
    subject: str,
    *,
    edge: str | int,
    project_id: str | None = None,
    agent_id: str | None = None,
    data: dict[str, Any] | None = None,
) -> list[Letter]:
    """Tell everybody who asked for it that something happened to a thing; gives the letters.

    `edge` names this one occurrence (an attempt's number, say): however often it is told, each
    alert tells of it once. The letter to an agent continues the chain of letters that led to the
    run, so that an alert about the runs that it starts comes to an end.
    """
    what = _one_of(Kind, kind)
    clean_text(subject, "The subject", most=MAX_EDGE)
    which = clean_text(str(edge), "The edge", most=MAX_EDGE)
    encode_json(data, "The data", most=MAX_DATA)
    body = {
        "kind": what,
        "subject": subject,
        "edge": which,
        "project_id": project_id,
        "agent_id": agent_id,
        "at": tx.now,
        "data": data,
    }
    return [
        mail.put_after(
            tx,
            chains.of_subject(tx, subject) if chains.is_counted(alert.mailbox) else None,
            alert.mailbox,
            {"alert": alert.id, **body},
            key=f"{alert.id}:{what}:{subject}:{which}",
            project=project_id,
        )
        for alert in tx.all(sql.ACTIVE, after="", limit=MAX_ALERTS)
        if what in alert.kinds
        and alert.project_id in (None, project_id)
        and alert.agent_id in (None, agent_id)
    ]


def test(tx: Tx, id: str) -> Letter:
    """Put a letter that only says that the alert works, ahead of all that waits to be told."""
    alert = get(tx, id)
    if alert.ended_at is not None:
        raise Refused(f"{alert.id} was removed; add it anew.", id=alert.id, reason="removed")
    body = {"alert": alert.id, "kind": "test", "subject": alert.id, "at": tx.now}
    return mail.put(tx, alert.test_mailbox, body, project=alert.project_id)


def get(tx: Tx, id: str) -> Alert:
    """An alert by its id, which may be shortened."""
    return sql.ALERTS.get(tx, sql.IDS.resolve(tx, id))


def list_alerts(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Alert]:
    """Alerts, oldest first; removed ones only when asked for."""
    (id,) = decode_cursor(after, "")
    rows = tx.all(sql.ALL if all else sql.ACTIVE, after=id, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda alert: (alert.id,))


def _one_of(choice: type[E], given: str) -> E:
    if given not in choice._value2member_map_:
        raise Invalid(f"{given!r} is none of {', '.join(choice)}.", value=given)
    return choice(given)


def _id(given: str | None, what: str) -> str | None:
    return clean_text(given, what, most=MAX_NAME) if given else None
