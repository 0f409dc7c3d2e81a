"""Record decisions; confirm, reject or dismiss them."""

from collections.abc import Sequence
from typing import NoReturn

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.decisions import sql
from corral.domain.decisions.model import TRANSITIONS, VERDICTS, Decision, DecisionState
from corral.domain.mail.model import agent_name_of, check_mailbox
from corral.domain.mail.payloads import DecisionPayload
from corral.domain.projects import ops as projects
from corral.domain.questions import ops as questions
from corral.domain.questions.model import check_answerers, check_may_answer, compute_deadline
from corral.domain.settings import ops as settings
from corral.kernel.deadline import is_overdue
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import (
    MAX_NAME,
    check_category,
    check_optional_text,
    check_text,
    encode_json,
)

RETENTION = sql.RETENTION
MAX_TITLE = 2_000
MAX_ALTERNATIVES = 20
MAX_BATCH = 1_000
CATEGORIES = "architecture, dependency, style or testing"
NOT_CONFIRMED_IN_TIME = "it was not confirmed in time"


def record(
    tx: Tx,
    title: str,
    *,
    rationale: str = "",
    alternatives: Sequence[str] = (),
    category: str = "general",
    confirm: bool = False,
    answerers: Sequence[str] = (),
    deadline_ms: int | None = None,
    deadline_outcome: str = "reject",
    author: str | None = None,
    project: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> Decision:
    """Record a decision with its rationale and alternatives. Secrets are redacted.

    With `confirm` it is only proposed: it must not be acted on until one of `answerers` (default:
    any person) confirms it. Without confirmation in time it is rejected, or dismissed by
    `deadline_outcome`. The author gets the outcome as a letter. Idempotent by `key`.
    """
    author_mailbox = check_mailbox(author or tx.actor)
    if deadline_outcome not in ("reject", "dismiss"):
        raise Invalid(
            f"Invalid outcome {deadline_outcome!r} at the deadline: expected reject or dismiss."
        )
    values = {
        "id": tx.new_id("dec"),
        "project_id": check_optional_text(project, "The project", max_bytes=MAX_NAME),
        "author": author_mailbox,
        "run_id": check_optional_text(run, "The run", max_bytes=MAX_NAME),
        "key": check_optional_text(key, "The key", max_bytes=MAX_NAME),
        "category": check_category(category, CATEGORIES),
        "title": check_text(title, "The title", max_bytes=MAX_TITLE),
        "rationale": check_optional_text(rationale, "The rationale") or "",
        "alternatives": encode_json(_clean_alternatives(alternatives), "The alternatives"),
        "answerers": encode_json(check_answerers(answerers), "Who may confirm"),
        "deadline_outcome": deadline_outcome,
        "created_at": tx.now,
    }
    # Serialized: concurrent calls would all pass the limit.
    tx.serialize(f"decisions:{author_mailbox}")
    if (
        key is not None
        and (existing := tx.first(sql.BY_KEY, author=author_mailbox, key=key)) is not None
    ):
        return existing
    event_data = {"author": author_mailbox, "category": category}
    created = create(tx, sql.DECISIONS, values, event_data=event_data)
    return _propose(tx, created, deadline_ms) if confirm else created


def confirm(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Confirm a decision.

    Raises Refused for an agent that is its author and for a caller that is not one of its
    answerers, and Conflict after its deadline.
    """
    return _review(tx, "confirm", decision, reason, by)


def reject(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Reject a decision; its author is notified with the reason."""
    return _review(tx, "reject", decision, reason, by)


def dismiss(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Close a decision without a verdict; a waiting author is notified."""
    return _review(tx, "dismiss", decision, reason, by)


def review_many(
    tx: Tx,
    decisions: Sequence[str],
    verdict: str,
    *,
    reason: str | None = None,
    by: str | None = None,
) -> list[Decision]:
    """Confirm, reject or dismiss several decisions in one transaction."""
    if verdict not in VERDICTS:
        raise Invalid(
            f"Invalid verdict {verdict!r}: expected {', '.join(VERDICTS)}.", verdict=verdict
        )
    if not 1 <= len(decisions) <= MAX_BATCH:
        raise Invalid(f"Give between 1 and {MAX_BATCH:,} decisions, not {len(decisions):,}.")
    return [_review(tx, verdict, id, reason, by) for id in dict.fromkeys(decisions)]


def expire_due(tx: Tx, *, limit: int = 100) -> list[Decision]:
    """End proposed decisions whose deadline has passed, and notify their authors."""
    return [
        _end(tx, decision.deadline_outcome, decision, None, NOT_CONFIRMED_IN_TIME)
        for decision in tx.all(sql.WAITING.due, now=tx.now, limit=check_limit(limit))
    ]


def acknowledge(tx: Tx, decision: str) -> Decision:
    """Record that the author knows the outcome: its letter is closed. Idempotent."""
    current = get(tx, decision)
    if current.ended_at is not None:
        questions.close_outcome_letter(tx, current.id, current.author)
    return current


def get(tx: Tx, decision: str) -> Decision:
    """Return a decision by its id or a unique prefix of it."""
    return sql.DECISIONS.get(tx, sql.IDS.resolve(tx, decision))


def list_decisions(
    tx: Tx,
    *,
    proposed: bool = False,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Decision]:
    """List decisions, newest first: all, those of a project, or the proposed ones."""
    if proposed and project:
        raise Invalid("Give a project or --proposed, not both.")
    if project:
        project_id = projects.find_id(tx, project)
        return sql.OF_PROJECT.page(tx, after=after, limit=limit, project_id=project_id)
    return (sql.PROPOSED if proposed else sql.ALL).page(tx, after=after, limit=limit)


def next_due(tx: Tx) -> int | None:
    """Return when the next proposed decision expires, or None."""
    time: int | None = tx.value(sql.WAITING.next)
    return time


def release_project(tx: Tx, project_id: str) -> None:
    """Dismiss the proposed decisions of a project that is being deleted."""
    for (id,) in tx.run(sql.WAITING.of_project, project_id=project_id):
        _end(tx, "dismiss", get(tx, id), tx.actor, "its project was deleted")


def _propose(tx: Tx, created: Decision, deadline_ms: int | None) -> Decision:
    scope = {"agent": agent_name_of(created.author), "project": created.project_id}
    limit = settings.get_value(tx, "decisions.max_proposed", **scope)
    if tx.value(sql.WAITING.count_of, owner=created.author) >= limit:
        raise Refused(
            f"{created.author} has {limit} proposed decisions, which is the limit. Wait for their "
            "confirmation (`corral decision list --proposed`).",
            author=created.author,
            limit=limit,
        )
    timeout_ms = deadline_ms or settings.get_value(tx, "decisions.deadline_ms", **scope)
    until = compute_deadline(tx.now, timeout_ms)
    proposed = transition(tx, sql.DECISIONS, "propose", created.id, deadline_at=until)
    questions.notify_answerers(
        tx, created.id, created.answerers, _to_payload(proposed), until=until
    )
    return proposed


def _review(tx: Tx, verb: str, decision: str, reason: str | None, by: str | None) -> Decision:
    current = get(tx, decision)
    decider = check_text(by or tx.actor, "The decider", max_bytes=MAX_NAME)
    check_may_answer(current.id, decider, asker=current.author, answerers=current.answerers)
    reason = check_optional_text(reason, "The reason")
    if current.state == TRANSITIONS[verb].to and current.decided_by == decider:
        return current
    if current.ended_at is not None or is_overdue(current, tx.now):
        _raise_late(current)
    try:
        return _end(tx, verb, current, decider, reason)
    except IllegalMove:
        _raise_late(get(tx, current.id))


def _end(tx: Tx, verb: str, current: Decision, decider: str | None, reason: str | None) -> Decision:
    ended = transition(
        tx,
        sql.DECISIONS,
        verb,
        current.id,
        event_data={"by": decider, "reason": reason},
        decided_by=decider,
        reason=reason,
        ended_at=tx.now,
    )
    if current.state is DecisionState.PROPOSED or verb == "reject":
        questions.send_outcome(
            tx,
            ended.id,
            ended.author,
            ended.answerers,
            _to_payload(ended),
            project=ended.project_id,
        )
    return ended


def _raise_late(current: Decision) -> NoReturn:
    outcome = f"it is {current.state}"
    if current.decided_by is not None:
        outcome += f" by {current.decided_by}"
    elif current.ended_at is not None or current.state is DecisionState.PROPOSED:
        outcome = f"its deadline has passed, so it is {TRANSITIONS[current.deadline_outcome].to}"
    raise Conflict(
        f"Too late to decide {current.id}: {outcome}.",
        id=current.id,
        state=current.state,
        decided_by=current.decided_by,
        reason="too_late",
    )


def _to_payload(decision: Decision) -> DecisionPayload:
    return DecisionPayload(
        decision=decision.id,
        state=decision.state,
        author=decision.author,
        title=decision.title,
        rationale=decision.rationale,
        decided_by=decision.decided_by,
        reason=decision.reason,
        deadline_at=decision.deadline_at,
    )


def _clean_alternatives(values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or len(values) > MAX_ALTERNATIVES:
        raise Invalid(f"Alternatives must be a list of at most {MAX_ALTERNATIVES} texts.")
    return [check_text(text, "An alternative", max_bytes=MAX_TITLE) for text in values]
