"""Taking a task, keeping it, and saying how it went: what whoever does the work says.

A task is held by a lease with a fence. When its doer goes silent, or its run ends without a submit,
it goes back to those that may be taken, or fails at the limit; whoever leads it is told once.
"""

from collections.abc import Sequence
from heapq import merge
from typing import Any

from corral.db.bulk_transitions import encode_rows
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.graph import share_files
from corral.domain.tasks.model import Busy, Evidence, Task, TaskState, read_evidence
from corral.domain.tasks.ops import find, lock, locked, speaker_of, tell, whole, working
from corral.domain.tasks.propagation import follow_up
from corral.kernel.errors import Held, Refused
from corral.kernel.lease import lease_end, taken_over
from corral.kernel.text import MAX_NAME, clean_text, encode_json

S = TaskState
LOOKED_AT = 20
"""Of the tasks that may be taken, so many at a time."""
MAX_EVIDENCE = 256 * 1024


def claim(
    tx: Tx,
    project: str,
    agent: str,
    *,
    key: str | None = None,
    role: str | None = None,
    run: str | None = None,
    lease_ms: int | None = None,
) -> Task | None:
    """Take the next task that is ready, or the one with this key; None when there is none.

    Highest priority first, then what has been ready for longest: of the role that is named, else
    of the agent's own role and of no role. What shares files with a running task is held back. The
    lease is renewed by `renew`, or by the heartbeats of the run that is named.
    """
    doer = working(tx, agent)
    project_id = lock(tx, projects.get(tx, project).id)
    until = _lease(tx, project_id, lease_ms)
    for silent in tx.all(sql.DUE, project=project_id, now=tx.now, limit=100):
        _give_back(tx, silent, "its doer went silent")
    if key is not None:
        task: Task | None = _named(tx, find(tx, key, project_id), doer)
    else:
        wanted = clean_text(role, "The role", most=MAX_NAME) if role else None
        task = _next(tx, project_id, doer, wanted)
    return None if task is None else whole(tx, _take(tx, task, doer, until, run))


def claim_started(tx: Tx, task: Task, agent: str, *, run: str, dir: str) -> Task:
    """Take a task for the agent that Corral starts for it, in a place that Corral made.

    Where a task is done, its check is run; so nobody else has a say in that.
    """
    doer = working(tx, agent)
    until = _lease(tx, lock(tx, task.project_id), None)
    return _take(tx, _named(tx, sql.TASKS.get(tx, task.id), doer), doer, until, run, dir)


def _take(
    tx: Tx, task: Task, doer: Agent, until: int, run: str | None, dir: str | None = None
) -> Task:
    return move(
        tx,
        sql.TASKS,
        "claim",
        task.id,
        note={"agent": doer.name, "fence": task.fence + 1} | ({"run": run} if run else {}),
        agent_id=doer.id,
        run_id=clean_text(run, "The run", most=MAX_NAME) if run else None,
        dir=dir,
        fence=task.fence + 1,
        lease_until=until,
        attempts=task.attempts + 1,
        started_at=tx.now,
    )


def _lease(tx: Tx, project_id: str, lease_ms: int | None) -> int:
    if lease_ms is None:
        lease_ms = int(settings.value(tx, "tasks.lease_ms", project=project_id))
    return lease_end(tx.now, lease_ms)


def _named(tx: Tx, task: Task, doer: Agent) -> Task:
    """A task that was asked for by name: what stands in the way is said."""
    if task.assignee_id not in (None, doer.id):
        name = agents.get(tx, task.assignee_id or "").name
        raise Refused(f"{task.key} is for {name} alone; take another.", id=task.id)
    if task.state is S.READY:
        busy = _in_the_way(task, tx.all(sql.BUSY, project=task.project_id))
        if busy is not None:
            raise Held(
                f"{task.key} shares files with {busy.id}, which is running; take another, or wait "
                "until that is submitted.",
                id=task.id,
                held_by=busy.id,
            )
    return task


def _next(tx: Tx, project_id: str, doer: Agent, role: str | None) -> Task | None:
    """The first task in line that shares no file with a running one.

    Those that do are put aside, until the running one ends; so each is looked at once.
    """
    busy: list[Busy] | None = None
    while True:
        line = _line(tx, project_id, doer, role)
        aside: dict[str, list[str]] = {}
        for task in line:
            if not task.files:
                found = None
            else:
                busy = tx.all(sql.BUSY, project=project_id) if busy is None else busy
                found = _in_the_way(task, busy)
            if found is None:
                _put_aside(tx, aside)
                return task
            aside.setdefault(found.id, []).append(task.id)
        if not line:
            return None
        _put_aside(tx, aside)


def _line(tx: Tx, project_id: str, doer: Agent, role: str | None) -> list[Task]:
    """The head of the line of those that an agent may take."""
    asked: dict[str, Any] = {"project": project_id, "limit": LOOKED_AT}
    lanes = [tx.all(sql.TO_TAKE_ASSIGNED, agent=doer.id, **asked)]
    own = role or doer.role
    if own is None:
        lanes.append(tx.all(sql.TO_TAKE, **asked))
    else:
        lanes.append(tx.all(sql.TO_TAKE_OF_ROLE, role=own, **asked))
        if role is None:
            lanes.append(tx.all(sql.TO_TAKE_OF_NO_ROLE, **asked))
    ordered = merge(*lanes, key=lambda task: (-task.priority, task.ready_at, task.id))
    return list(ordered)[:LOOKED_AT]


def _in_the_way(task: Task, busy: Sequence[Busy]) -> Busy | None:
    return next((each for each in busy if share_files(task.files, each.files)), None)


def _put_aside(tx: Tx, aside: dict[str, list[str]]) -> None:
    for running, held in aside.items():
        tx.run(sql.HOLD_BACK, held_by=running, keys_=encode_rows(held))


def renew(
    tx: Tx,
    task: Task | str,
    *,
    agent: str | None = None,
    fence: int | None = None,
    lease_ms: int | None = None,
) -> Task:
    """Keep a task for another term; Held when it was taken over."""
    found = _mine(tx, task, agent, fence)
    renewed = tx.one(
        sql.RENEW,
        id=found.id,
        fence=found.fence,
        until=_lease(tx, found.project_id, lease_ms),
    )
    if renewed is None:
        raise Held(
            f"{found.id} is not out with you any more; it is {found.state}. Claim again.",
            id=found.id,
            state=found.state,
        )
    return whole(tx, renewed)


def submit(
    tx: Tx,
    task: Task | str,
    evidence: Evidence | dict[str, Any] | str,
    *,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Say that a task is done, with what shows it: commits, commands with exit codes, files, text.

    It is done when that is accepted: by somebody else, by its check, or by the project's policy.
    Saying it twice is fine; only whoever has the task can.
    """
    shown = read_evidence(evidence)
    found = _mine(tx, task, agent, fence)
    if found.state in (S.SUBMITTED, S.DONE):
        return whole(tx, found)
    submitted = move(
        tx,
        sql.TASKS,
        "submit",
        found.id,
        guard=found.fence,
        note={"evidence": shown},
        evidence=encode_json(shown, "The evidence", most=MAX_EVIDENCE),
        submitted_at=tx.now,
        check_until=None,
        lease_until=None,
        attempts=0,
        reason=None,
    )
    submitted = follow_up(tx, found, submitted)
    if submitted.check_command is not None:
        return whole(tx, submitted)
    if shown.all_passed and settings.value(tx, "tasks.auto_accept", project=found.project_id):
        note = {"by": "policy"}
        after = move(tx, sql.TASKS, "accept", found.id, note=note, ended_at=tx.now)
        return whole(tx, follow_up(tx, submitted, after))
    tell(tx, submitted.lead, submitted, "submitted")
    return whole(tx, submitted)


def fail(
    tx: Tx,
    task: Task | str,
    reason: str,
    *,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Give a task up, with the reason: everything that needs it is blocked for that."""
    why = clean_text(reason, "The reason")
    found = _mine(tx, task, agent, fence, or_lead=True)
    return whole(tx, _fail(tx, found, why))


def release(
    tx: Tx,
    task: Task | str,
    *,
    reason: str | None = None,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Give a task back undone, so that another may take it; that does not count as an attempt."""
    why = clean_text(reason, "The reason") if reason else None
    found = _mine(tx, task, agent, fence, or_lead=True)
    return whole(tx, _release(tx, found, why, attempts=max(0, found.attempts - 1)))


# -- starting by themselves ----------------------------------------------------------------------


def ready_projects(tx: Tx) -> list[str]:
    """The projects that have a task which may be taken."""
    found: list[str] = []
    while (id := tx.value(sql.NEXT_READY_PROJECT, after=found[-1] if found else "")) is not None:
        found.append(id)
    return found


def startable(tx: Tx, project_id: str) -> list[Task]:
    """The head of the line of a project, for whomever."""
    line = [
        *tx.all(sql.TO_TAKE, project=project_id, limit=LOOKED_AT),
        *tx.all(sql.TO_TAKE_BY_ASSIGNEES, project=project_id, limit=LOOKED_AT),
    ]
    return sorted(line, key=lambda task: (-task.priority, task.ready_at, task.id))


def count_in_runs(tx: Tx, project_id: str) -> int:
    """How many tasks of a project are being done in runs."""
    return int(tx.value(sql.COUNT_IN_RUNS, project=project_id))


# -- silence -----------------------------------------------------------------------------------


def release_due(tx: Tx, *, limit: int = 100) -> list[Task]:
    """Take back, in one project, the tasks whose doers went silent; empty when there is none left.

    Whoever claims does so too, so nothing waits for this but those who want to be told.
    """
    project_id = tx.value(sql.DUE_PROJECT, now=tx.now)
    if project_id is None:
        return []
    lock(tx, project_id)
    due = tx.all(sql.DUE, project=project_id, now=tx.now, limit=limit)
    return [_give_back(tx, task, "its doer went silent") for task in due]


def release_of_run(tx: Tx, run_id: str, reason: str) -> list[Task]:
    """A run is over: take back the tasks that were done in it and were not submitted."""
    for project_id in sorted({task.project_id for task in tx.all(sql.OF_RUN, run_id=run_id)}):
        lock(tx, project_id)
    return [_give_back(tx, task, reason) for task in tx.all(sql.OF_RUN, run_id=run_id)]


def next_lease_end(tx: Tx) -> int | None:
    """When the next lease runs out."""
    at: int | None = tx.value(sql.NEXT_LEASE_END)
    return at


def _give_back(tx: Tx, task: Task, reason: str) -> Task:
    """Silence is no success: it may be taken again, or has failed at the limit."""
    most = int(settings.value(tx, "tasks.max_attempts", project=task.project_id))
    if task.attempts >= most:
        return _fail(tx, task, f"{reason}, {task.attempts} times")
    back = _release(tx, task, reason, attempts=task.attempts)
    tell(tx, back.lead, back, "returned", reason)
    return back


def _release(tx: Tx, task: Task, reason: str | None, *, attempts: int) -> Task:
    after = move(
        tx,
        sql.TASKS,
        "release",
        task.id,
        guard=task.fence,
        note={"reason": reason} if reason else None,
        agent_id=None,
        run_id=None,
        lease_until=None,
        attempts=attempts,
        reason=reason,
    )
    return follow_up(tx, task, after)


def _fail(tx: Tx, task: Task, reason: str) -> Task:
    after = move(
        tx,
        sql.TASKS,
        "fail",
        task.id,
        guard=task.fence,
        note={"reason": reason},
        lease_until=None,
        ended_at=tx.now,
        reason=reason,
    )
    tell(tx, after.lead, after, "failed", reason)
    return follow_up(tx, task, after)


def _mine(
    tx: Tx, task: Task | str, agent: str | None, fence: int | None, *, or_lead: bool = False
) -> Task:
    """A task, for whoever has it: by the fence that the claim gave, as its agent, or as a person.

    An agent cannot speak for another one, whatever fence it shows.
    """
    found = locked(tx, task)
    shown = fence if fence is not None or isinstance(task, str) else task.fence
    if shown is not None and shown != found.fence:
        raise taken_over(found.id, yours=shown, found=found.fence, owner=found.agent_id)
    speaker = speaker_of(tx, agent)
    if or_lead and speaker == found.lead:
        return found
    if speaker.startswith("agent:"):
        name = speaker.removeprefix("agent:")
        if found.agent_id != agents.get(tx, name).id:
            has = f"with {agents.get(tx, found.agent_id).name}" if found.agent_id else found.state
            raise Refused(
                f"{found.id} is {has}, not with {name}; claim it first.",
                id=found.id,
                state=found.state,
            )
    elif found.agent_id is None and not or_lead:
        raise Refused(
            f"{found.id} is {found.state}, and nobody has taken it; claim it first.",
            id=found.id,
            state=found.state,
            reason="not_claimed",
        )
    return found
