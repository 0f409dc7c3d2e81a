"""Add and remove alerts, and put their notifications as letters."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.alerts import sql
from corral.domain.alerts.model import Alert, AlertKind, TargetKind, check_target
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Letter, check_mailbox
from corral.domain.mail.payloads import AlertPayload
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid, Refused
from corral.kernel.pagination import Page
from corral.kernel.validation import (
    MAX_NAME,
    check_choice,
    check_optional_text,
    check_text,
    encode_json,
)

MAX_ALERTS = 1_000
"""Every event checks all alerts, so their number is limited."""
MAX_EDGE = 60
MAX_DATA = 64 * 1024

RETENTION = sql.RETENTION


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
    """Subscribe a target to kinds of events.

    The kinds are crashed, failed, stuck, needs_input, budget, finished and undelivered. The target
    is a webhook (its URL, or secret:NAME), a command, the desktop or a mailbox. `secret` names the
    secret that signs webhook requests. `project` (an id) and `agent` (a name or id) restrict the
    events.
    """
    chosen = [check_choice(kind, AlertKind, "The kind") for kind in kinds]
    if not chosen:
        raise Invalid(f"Give at least one kind: {', '.join(AlertKind)}.")
    via = check_choice(target_kind, TargetKind, "The target kind")
    check_target(via, target)
    if via is TargetKind.MAILBOX:
        target = mail.resolve_mailbox(tx, check_mailbox(target))
    if secret is not None:
        settings.check_secret_name(secret)
        if via is not TargetKind.WEBHOOK:
            raise Invalid("Only webhooks are signed. Omit the secret.", secret=secret)
        settings.get_secret(tx, secret)  # fail now, not at every notification
    tx.serialize("alerts")
    if tx.value(sql.COUNT_ACTIVE) >= MAX_ALERTS:
        raise Refused(
            f"The limit of {MAX_ALERTS} alerts is reached. Remove one first (`corral alert list`).",
            limit=MAX_ALERTS,
        )
    return create(
        tx,
        sql.ALERTS,
        {
            "id": tx.new_id("alr"),
            "kinds": encode_json([kind for kind in AlertKind if kind in chosen], "The kinds"),
            "project_id": check_optional_text(project, "The project", max_bytes=MAX_NAME),
            "agent_id": agents.get(tx, agent).id if agent is not None else None,
            "target_kind": via,
            "target": target,
            "secret": secret,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        event_data={"target_kind": via, "kinds": chosen},
    )


def remove(tx: Tx, id: str) -> Alert:
    """Remove an alert. Its waiting notifications are dropped with a reason."""
    removed = transition(tx, sql.ALERTS, "remove", sql.IDS.resolve(tx, id), ended_at=tx.now)
    if removed.target_kind is not TargetKind.MAILBOX:
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
    """Notify all matching alerts of an event about `subject`; return the letters.

    `edge` identifies this occurrence, such as the number of an attempt. Idempotent: each alert
    notifies once for each edge. The letter to an agent continues the chain of letters that led to
    the run, so an agent that starts a run for each alert reaches the hop limit.
    """
    event = check_choice(kind, AlertKind, "The kind")
    check_text(subject, "The subject", max_bytes=MAX_EDGE)
    edge_text = check_text(str(edge), "The edge", max_bytes=MAX_EDGE)
    encode_json(data, "The data", max_bytes=MAX_DATA)
    return [
        mail.put_caused_by(
            tx,
            chains.get_for_subject(tx, subject) if chains.is_read_by_agent(alert.mailbox) else None,
            alert.mailbox,
            AlertPayload(
                alert=alert.id,
                event=event,
                subject=subject,
                edge=edge_text,
                project_id=project_id,
                agent_id=agent_id,
                at=tx.now,
                data=data,
            ),
            key=f"{alert.id}:{event}:{subject}:{edge_text}",
            project=project_id,
        )
        for alert in tx.all(sql.ACTIVE.query, after="", limit=MAX_ALERTS)
        if event in alert.kinds
        and alert.project_id in (None, project_id)
        and alert.agent_id in (None, agent_id)
    ]


def send_test(tx: Tx, id: str) -> Letter:
    """Send a test notification, ahead of waiting ones."""
    alert = get(tx, id)
    if alert.ended_at is not None:
        raise Refused(f"{alert.id} was removed. Add it again.", id=alert.id, reason="removed")
    body = AlertPayload(alert=alert.id, event="test", subject=alert.id, at=tx.now)
    return mail.put(tx, alert.test_mailbox, body, project=alert.project_id)


def get(tx: Tx, id: str) -> Alert:
    """Return an alert by its id or a unique prefix of it."""
    return sql.ALERTS.get(tx, sql.IDS.resolve(tx, id))


def list_alerts(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Alert]:
    """List alerts, oldest first. With `all`, also list removed ones."""
    listing = sql.ALL if all else sql.ACTIVE
    return listing.page(tx, after=after, limit=limit)
