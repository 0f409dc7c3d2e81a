"""Accepting what was submitted, or not: by somebody other than its doer, or by a check."""

import msgspec

from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.model import Evidence, Ran, Task, TaskState
from corral.domain.tasks.ops import locked, speaker_of, tell, whole
from corral.domain.tasks.propagation import follow_up
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.text import clean_text, encode_json

S = TaskState
MAX_CHECKS = 20
"""Of the checks that Corral ran for a task, the last ones are kept."""


def accept(tx: Tx, task: Task | str, *, note: str | None = None, agent: str | None = None) -> Task:
    """Say that what was submitted is good; never its doer. Saying it twice is fine."""
    found = _others(tx, task, agent)
    if found.state is S.DONE:
        return whole(tx, found)
    said = clean_text(note, "The note") if note else None
    after = move(
        tx,
        sql.TASKS,
        "accept",
        found.id,
        note={"by": speaker_of(tx, agent)} | ({"note": said} if said else {}),
        ended_at=tx.now,
        reason=said,
    )
    return whole(tx, follow_up(tx, found, after))


def reject(tx: Tx, task: Task | str, reason: str, *, agent: str | None = None) -> Task:
    """Send what was submitted back to be done again, with the reason; never its doer."""
    why = clean_text(reason, "The reason")
    return whole(tx, _reject(tx, _others(tx, task, agent), why, by=speaker_of(tx, agent)))


def _others(tx: Tx, task: Task | str, agent: str | None) -> Task:
    """A task, for whoever did not do it."""
    found = locked(tx, task)
    speaker = speaker_of(tx, agent)
    if found.agent_id is not None and speaker == f"agent:{agents.get(tx, found.agent_id).name}":
        raise Refused(
            f"{found.id} was done by {speaker}, who cannot judge it; let another agent or a person "
            "look at it.",
            id=found.id,
            reason="own_work",
        )
    return found


def _reject(tx: Tx, found: Task, reason: str, *, by: str, evidence: Evidence | None = None) -> Task:
    shown = evidence or found.evidence
    after = move(
        tx,
        sql.TASKS,
        "reject",
        found.id,
        guard=found.fence,
        note={"by": by, "reason": reason},
        reason=reason,
        check_until=None,
        evidence=encode_json(shown, "The evidence") if shown else None,
    )
    if found.agent_id is not None:
        name = agents.get(tx, found.agent_id).name
        tell(tx, f"agent:{name}", after, "rejected", reason)
    return follow_up(tx, found, after)


# -- checks ------------------------------------------------------------------------------------


def begin_check(tx: Tx, task: str | None = None) -> Task | None:
    """Take a submitted task whose check is to be run, or this one; nobody else gets it meanwhile.

    None when there is none to be run.
    """
    if task is None:
        found = tx.one(sql.TO_CHECK, now=tx.now)
        if found is None:
            return None
    else:
        found = locked(tx, task)
        if found.check_command is None:
            raise Invalid(f"{found.id} has no check; accept or reject it yourself.", id=found.id)
    most = int(settings.value(tx, "tasks.check_timeout_ms", project=found.project_id))
    taken = tx.one(
        sql.SET_CHECKING,
        id=found.id,
        fence=found.fence,
        now=tx.now,
        until=tx.now + most + MINUTE,
    )
    if taken is None and task is not None:
        now = sql.TASKS.get(tx, found.id)
        what = "its check is being run" if now.state is S.SUBMITTED else f"it is {now.state}"
        raise Conflict(f"{now.id} cannot be checked: {what}.", id=now.id, state=now.state)
    return taken


def conclude_check(tx: Tx, task: Task, ran: Ran) -> Task:
    """Accept or reject a task by how its check ended; what it printed becomes evidence.

    A check that ends with 0 accepts. When the task was judged otherwise, or taken anew, meanwhile,
    that stands.
    """
    found = locked(tx, task)
    if found.state is not S.SUBMITTED or found.fence != task.fence:
        return whole(tx, found)
    shown = found.evidence or Evidence()
    shown = msgspec.structs.replace(shown, checks=[*shown.checks, ran][-MAX_CHECKS:])
    if ran.exit_code == 0:
        after = move(
            tx,
            sql.TASKS,
            "accept",
            found.id,
            guard=found.fence,
            note={"by": "check"},
            ended_at=tx.now,
            check_until=None,
            evidence=encode_json(shown, "The evidence"),
        )
        return whole(tx, follow_up(tx, found, after))
    why = f"its check ended with {ran.exit_code}"
    last = (ran.output or "").strip().rpartition("\n")[2][:200]
    reason = f"{why}: {last}" if last else why
    back = _reject(tx, found, reason, by="check", evidence=shown)
    tell(tx, back.lead, back, "rejected", reason)
    return whole(tx, back)
