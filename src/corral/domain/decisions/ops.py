"""Recording decisions, and confirming, rejecting or dismissing them."""

from collections.abc import Sequence
from typing import NoReturn

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.decisions import sql
from corral.domain.decisions.model import MOVES, VERDICTS, Decision, DecisionState
from corral.domain.mail.model import agent_of, check_mailbox
from corral.domain.projects import ops as projects
from corral.domain.questions import ops as questions
from corral.domain.questions.model import check_answerers, check_may_answer, deadline_of
from corral.domain.settings import ops as settings
from corral.kernel.deadline import is_late
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_category, clean_text, encode_json

KEPT = sql.KEPT
S = DecisionState
MAX_TITLE = 2_000
MAX_ALTERNATIVES = 20
MAX_BATCH = 1_000
CATEGORIES = "architecture, dependency, style or testing"
NOBODY = "nobody confirmed it in time"


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
    at_deadline: str = "reject",
    author: str | None = None,
    project: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> Decision:
    """Record what was decided, why, and what else there was; secrets are taken out.

    With `confirm` it is only proposed: nothing may be done on it until one of `answerers` (else a
    person) confirms it. Without that in time it is rejected, or dismissed if `at_deadline` says so.
    The author is told how it ended, also after it died. The same `key` gives back the first one.
    """
    whose = check_mailbox(author or tx.actor)
    if at_deadline not in ("reject", "dismiss"):
        raise Invalid(
            f"{at_deadline!r} cannot happen at a deadline: silence confirms nothing; write reject "
            "or dismiss."
        )
    values = {
        "id": tx.new_id("dec"),
        "project_id": clean_text(project, "The project", most=MAX_NAME) if project else None,
        "author": whose,
        "run_id": clean_text(run, "The run", most=MAX_NAME) if run else None,
        "key": clean_text(key, "The key", most=MAX_NAME) if key else None,
        "category": check_category(category, CATEGORIES),
        "title": clean_text(title, "The title", most=MAX_TITLE),
        "rationale": clean_text(rationale, "The rationale") if rationale else "",
        "alternatives": encode_json(_alternatives(alternatives), "The alternatives"),
        "answerers": encode_json(check_answerers(answerers), "Who may confirm"),
        "at_deadline": at_deadline,
        "created_at": tx.now,
    }
    # Two that count at the same moment would both find room for one more.
    tx.serialize(f"decisions:{whose}")
    if key is not None and (before := tx.one(sql.BY_KEY, author=whose, key=key)) is not None:
        return before
    note = {"author": whose, "category": category}
    made = create(tx, sql.DECISIONS, values, note=note)
    assert made is not None
    return _propose(tx, made, deadline_ms) if confirm else made


def confirm(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Say yes to a decision: somebody who may, in time, and never whoever proposed it."""
    return _judge(tx, "confirm", decision, reason, by)


def reject(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Say no to a decision; its author is told, and why."""
    return _judge(tx, "reject", decision, reason, by)


def dismiss(tx: Tx, decision: str, *, reason: str | None = None, by: str | None = None) -> Decision:
    """Judge a decision neither way; whoever waits for it is told that it is not confirmed."""
    return _judge(tx, "dismiss", decision, reason, by)


def judge(
    tx: Tx,
    decisions: Sequence[str],
    verdict: str,
    *,
    reason: str | None = None,
    by: str | None = None,
) -> list[Decision]:
    """Confirm, reject or dismiss several decisions: all of them, or none."""
    if verdict not in VERDICTS:
        raise Invalid(f"{verdict!r} is none of {', '.join(VERDICTS)}.", verdict=verdict)
    if not 1 <= len(decisions) <= MAX_BATCH:
        raise Invalid(f"Name 1 to {MAX_BATCH:,} decisions, not {len(decisions):,}.")
    return [_judge(tx, verdict, each, reason, by) for each in dict.fromkeys(decisions)]


def expire_due(tx: Tx, *, limit: int = 100) -> list[Decision]:
    """End the proposed decisions that nobody confirmed in time, and tell their authors."""
    return [
        _end(tx, late.at_deadline, late, None, NOBODY)
        for late in tx.all(sql.WAITING.due, now=tx.now, limit=check_limit(limit))
    ]


def hear(tx: Tx, decision: str) -> Decision:
    """Say that the author has learned how its decision ended: the letter that tells it is done."""
    found = get(tx, decision)
    if found.ended_at is not None:
        questions.close_report(tx, found.id, found.author)
    return found


def get(tx: Tx, decision: str) -> Decision:
    """A decision by its id, which may be shortened."""
    return sql.DECISIONS.get(tx, sql.IDS.resolve(tx, decision))


def list_decisions(
    tx: Tx,
    *,
    proposed: bool = False,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Decision]:
    """Decisions, newest first: all, those of a project, or those that wait to be confirmed."""
    if proposed and project:
        raise Invalid("Ask for a project's decisions, or for those that wait, not both.")
    (before,) = decode_cursor(after, LAST_ID)
    query = sql.LIST_PROPOSED if proposed else sql.LIST
    narrow = {}
    if project:
        query = sql.LIST_OF_PROJECT
        narrow["project_id"] = projects.find_id(tx, project)
    rows = tx.all(query, before=before, limit=check_limit(limit) + 1, **narrow)
    return page_of(rows, limit, lambda decision: (decision.id,))


def next_due(tx: Tx) -> int | None:
    """The moment at which `expire_due` will next have something to do."""
    moment: int | None = tx.value(sql.WAITING.next)
    return moment


def dismiss_all(tx: Tx, project_id: str) -> None:
    """Let nobody wait for a project that is being deleted."""
    for (id,) in tx.run(sql.WAITING.of_project, project_id=project_id):
        _end(tx, "dismiss", get(tx, id), tx.actor, "its project was deleted")


def _propose(tx: Tx, made: Decision, deadline_ms: int | None) -> Decision:
    scope = {"agent": agent_of(made.author), "project": made.project_id}
    most = settings.value(tx, "decisions.max_proposed", **scope)
    if tx.value(sql.WAITING.count_of, whose=made.author) >= most:
        raise Refused(
            f"{made.author} has {most} decisions waiting, and more are not allowed; wait for the "
            "first ones (`corral decision list --proposed`).",
            author=made.author,
            limit=most,
        )
    waited_ms = deadline_ms or settings.value(tx, "decisions.deadline_ms", **scope)
    until = deadline_of(tx.now, waited_ms)
    proposed = move(tx, sql.DECISIONS, "propose", made.id, deadline_at=until)
    questions.call_on(tx, made.id, made.answerers, _told(proposed), until=until)
    return proposed


def _judge(tx: Tx, verb: str, decision: str, reason: str | None, by: str | None) -> Decision:
    found = get(tx, decision)
    who = clean_text(by or tx.actor, "Who decides", most=MAX_NAME)
    check_may_answer(found.id, who, asker=found.author, answerers=found.answerers)
    why = clean_text(reason, "The reason") if reason else None
    if found.state == MOVES[verb].to and found.decided_by == who:
        return found
    if found.ended_at is not None or is_late(found, tx.now):
        _refuse_late(found)
    try:
        return _end(tx, verb, found, who, why)
    except IllegalMove:
        _refuse_late(get(tx, found.id))


def _end(tx: Tx, verb: str, found: Decision, who: str | None, why: str | None) -> Decision:
    ended = move(
        tx,
        sql.DECISIONS,
        verb,
        found.id,
        note={"by": who, "reason": why},
        decided_by=who,
        reason=why,
        ended_at=tx.now,
    )
    if found.state is S.PROPOSED or verb == "reject":
        questions.report(
            tx,
            ended.id,
            ended.author,
            ended.answerers,
            _told(ended),
            project=ended.project_id,
        )
    return ended


def _refuse_late(found: Decision) -> NoReturn:
    how = f"it is {found.state}"
    if found.decided_by is not None:
        how += f" by {found.decided_by}"
    elif found.ended_at is not None or found.state is S.PROPOSED:
        how = f"its time was over; it counts as {MOVES[found.at_deadline].to}"
    raise Conflict(
        f"You are too late for {found.id}: {how}.",
        id=found.id,
        found=found.state,
        decided_by=found.decided_by,
        reason="too_late",
    )


def _told(decision: Decision) -> dict[str, object]:
    return {
        "kind": "decision",
        "decision": decision.id,
        "state": decision.state,
        "author": decision.author,
        "title": decision.title,
        "rationale": decision.rationale,
        "decided_by": decision.decided_by,
        "reason": decision.reason,
        "deadline_at": decision.deadline_at,
    }


def _alternatives(given: Sequence[str]) -> list[str]:
    if isinstance(given, str) or len(given) > MAX_ALTERNATIVES:
        raise Invalid(f"Alternatives are a list of at most {MAX_ALTERNATIVES} texts.")
    return [clean_text(each, "An alternative", most=MAX_TITLE) for each in given]
