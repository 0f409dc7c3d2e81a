"""Looking at tasks and steering them: what whoever leads the work does."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.bulk_transitions import encode_rows
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.mail import ops as mail
from corral.domain.mail.model import check_priority
from corral.domain.projects import ops as projects
from corral.domain.tasks import sql
from corral.domain.tasks.graph import check_path, critical_path
from corral.domain.tasks.model import WAITING, Graph, Task, TaskState
from corral.domain.tasks.propagation import follow_up, recount
from corral.kernel.clock import DAY
from corral.kernel.errors import Ambiguous, Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json
from corral.kernel.unset import KEEP

S = TaskState
MAX_FILES = 1_000
MAX_PATH = 1_000
MAX_TITLE = 500
MAX_GRAPH = 20_000
LETTER_MS = 30 * DAY
"""How long somebody who is away can still read how it went."""


# -- looking -----------------------------------------------------------------------------------


def get(tx: Tx, task: str, *, project: str | None = None) -> Task:
    """A task by its id, which may be shortened, or by its key."""
    return whole(tx, find(tx, task, project))


def list_tasks(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    agent: str | None = None,
    archived: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Task]:
    """Tasks in the order in which they were declared: all, of a project, in a state, or those that
    an agent has or had; or those of a project that are archived."""
    wanted: dict[str, Any] = {}
    if agent is not None:
        wanted["agent"] = agents.get(tx, agent).id
    if project is not None:
        wanted["project"] = projects.get(tx, project).id
    if state is not None:
        if state not in [*TaskState]:
            raise Invalid(f"{state!r} is no state of a task; those are {', '.join(TaskState)}.")
        wanted["state"] = state
    statement = sql.LISTS.get((*wanted, "archived") if archived else (*wanted,))
    if statement is None:
        raise Invalid(
            "Tasks are listed by project and state, or by agent and state; leave the rest out."
        )
    (id,) = decode_cursor(after, "")
    rows = tx.all(statement, after=id, limit=check_limit(limit) + 1, **wanted)
    page = page_of(rows, limit, lambda task: (task.id,))
    return Page(_with_needs(tx, page.items), page.next)


def graph(tx: Tx, project: str) -> Graph:
    """A project's graph: its tasks, the edges between them, and the critical path through what is
    not over yet."""
    project_id = projects.get(tx, project).id
    tasks = tx.all(sql.LISTS["project",], project=project_id, after="", limit=MAX_GRAPH)
    edges = [(task, need) for task, need in tx.run(sql.EDGES_OF_PROJECT, project=project_id)]
    keys = {task.id: task.key for task in tasks}
    needs: dict[str, list[str]] = {task.id: [] for task in tasks}
    for task, need in edges:
        if task in needs and need in keys:
            needs[task].append(need)
    open_ = {task.id: needs[task.id] for task in tasks if task.ended_at is None}
    return Graph(
        tasks=[
            msgspec.structs.replace(task, depends_on=[keys[need] for need in needs[task.id]])
            for task in tasks
        ],
        edges=edges,
        critical_path=critical_path(open_),
        counts=counts(tx, project_id),
    )


def counts(tx: Tx, project: str) -> dict[str, int]:
    """How many tasks of a project are in which state."""
    return dict(tx.run(sql.COUNTS, project=projects.get(tx, project).id))


def find(tx: Tx, task: str, project: str | None = None) -> Task:
    """A task by its id or key, without the keys of what it needs."""
    if task.startswith("tsk_"):
        return sql.TASKS.get(tx, sql.IDS.resolve(tx, task))
    key = clean_text(task, "The task", most=MAX_NAME)
    if project is not None:
        project_id = projects.get(tx, project).id
        found = tx.all(sql.BY_KEY_IN_PROJECT, key=key, project=project_id)
    else:
        found = tx.all(sql.BY_KEY, key=key)
    if not found:
        raise NotFound(
            f"There is no task {task!r}; `corral task list` shows all there are.",
            kind="task",
            id=task,
            reason="unknown_task",
        )
    if len(found) > 1:
        raise Ambiguous(
            f"Several projects have a task {task}: {', '.join(each.id for each in found)}; "
            "give its id, or the project.",
            kind="task",
            candidates=[each.id for each in found],
        )
    return found[0]


def whole(tx: Tx, task: Task) -> Task:
    """A task with the keys of what it needs."""
    return _with_needs(tx, [task])[0]


def _with_needs(tx: Tx, tasks: Sequence[Task]) -> list[Task]:
    needs: dict[str, list[str]] = {task.id: [] for task in tasks}
    if needs:
        for edge in tx.all(sql.NEEDS, keys_=encode_rows([*needs])):
            needs[edge.task_id].append(edge.key)
    return [msgspec.structs.replace(task, depends_on=needs[task.id]) for task in tasks]


# -- steering ----------------------------------------------------------------------------------


def retry(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Let a failed task be done again; what was blocked for it waits for it again."""
    return _again(tx, "retry", task, agent)


def reopen(
    tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None
) -> Task:
    """Let a task that is done, skipped or cancelled be done after all.

    What needs it waits again; what is under way already goes on.
    """
    return _again(tx, "reopen", task, agent, _reason(reason))


def _again(
    tx: Tx, verb: str, task: Task | str, agent: str | None, reason: str | None = None
) -> Task:
    before = steered(tx, task, agent)
    after = move(
        tx,
        sql.TASKS,
        verb,
        before.id,
        note={"reason": reason} if reason else None,
        ended_at=None,
        archived_at=None,
        attempts=0,
        agent_id=None,
        run_id=None,
        ready_at=None,
        reason=reason,
    )
    return whole(tx, follow_up(tx, before, after))


def pause(tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None) -> Task:
    """Let nobody take a task until it is resumed."""
    before = steered(tx, task, agent)
    why = _reason(reason)
    return whole(tx, move(tx, sql.TASKS, "pause", before.id, held_by=None, reason=why))


def resume(tx: Tx, task: Task | str, *, agent: str | None = None) -> Task:
    """Let a paused task be taken when all that it needs is there."""
    before = steered(tx, task, agent)
    after = move(tx, sql.TASKS, "resume", before.id, reason=None)
    return whole(tx, follow_up(tx, before, after))


def skip(tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None) -> Task:
    """Leave a task out: what needs it goes on without. Whoever does it is told to stop."""
    return _end(tx, "skip", task, agent, reason)


def cancel(
    tx: Tx, task: Task | str, *, reason: str | None = None, agent: str | None = None
) -> Task:
    """Give a task up: what needs it is blocked, until it is skipped or reopened, or no longer
    needed. Whoever does it is told to stop."""
    return _end(tx, "cancel", task, agent, reason)


def _end(tx: Tx, verb: str, task: Task | str, agent: str | None, reason: str | None) -> Task:
    before = steered(tx, task, agent)
    why = _reason(reason)
    after = move(
        tx,
        sql.TASKS,
        verb,
        before.id,
        note={"reason": why} if why else None,
        ended_at=tx.now,
        lease_until=None,
        held_by=None,
        cause_id=None,
        reason=why,
    )
    tell_to_stop(tx, before, after.state, why)
    return whole(tx, follow_up(tx, before, after))


def reassign(tx: Tx, task: Task | str, to: str | None, *, agent: str | None = None) -> Task:
    """Say which agent is to do a task; None: any of its role.

    Whoever does it now is told to stop, and cannot submit it any more.
    """
    before = steered(tx, task, agent)
    new = working(tx, to) if to else None
    if before.state not in (S.RUNNING, S.SUBMITTED):
        if before.state not in WAITING:
            raise Conflict(
                f"{before.id} is {before.state}; reopen or retry it before you give it away.",
                id=before.id,
                state=before.state,
            )
        after = tx.one(sql.SET_ASSIGNEE, id=before.id, assignee_id=new.id if new else None)
        assert after is not None
        data = {"to": new.name if new else None}
        tx.note("task", "assign", before.id, project_id=before.project_id, data=data)
        return whole(tx, after)
    after = move(
        tx,
        sql.TASKS,
        "reassign",
        before.id,
        note={"to": new.name if new else None},
        assignee_id=new.id if new else None,
        agent_id=None,
        run_id=None,
        fence=before.fence + 1,
        lease_until=None,
        attempts=0,
    )
    tell_to_stop(tx, before, "reassigned", f"it was given to {new.name}" if new else None)
    return whole(tx, follow_up(tx, before, after))


def depend(tx: Tx, task: Task | str, on: Sequence[str], *, agent: str | None = None) -> Task:
    """Let a task wait for others of its project as well; refused where that closes a circle."""
    before = _waiting(steered(tx, task, agent))
    needs = _needs(tx, before, on)
    for need in needs:
        if need.id == before.id or tx.run(sql.LEADS_TO, start=need.id, target=before.id):
            raise Invalid(
                f"{before.key} cannot wait for {need.key}, which waits for {before.key} itself; "
                "take a dependency out first.",
                key=before.key,
                on=need.key,
                reason="cycle",
            )
    if not tx.run(sql.ADD_EDGES, rows=encode_rows([(before.id, need.id) for need in needs])):
        return whole(tx, before)
    return _note_needs(tx, "depend", before, needs)


def undepend(tx: Tx, task: Task | str, on: Sequence[str], *, agent: str | None = None) -> Task:
    """Let a task no longer wait for others."""
    before = _waiting(steered(tx, task, agent))
    needs = _needs(tx, before, on)
    gone = tx.run(sql.REMOVE_EDGES, id=before.id, keys_=encode_rows([need.id for need in needs]))
    return _note_needs(tx, "undepend", before, needs) if gone else whole(tx, before)


def _waiting(task: Task) -> Task:
    if task.state not in WAITING:
        raise Conflict(
            f"{task.id} is {task.state}; what it waits for can be changed only before it is taken.",
            id=task.id,
            state=task.state,
        )
    return task


def _needs(tx: Tx, task: Task, on: Sequence[str]) -> list[Task]:
    if not on:
        raise Invalid("Name the tasks that it depends on.")
    needs = [find(tx, each, task.project_id) for each in on]
    for need in needs:
        if need.project_id != task.project_id:
            raise Invalid(f"{need.id} is in another project; a task waits for its own graph only.")
    return needs


def _note_needs(tx: Tx, verb: str, before: Task, needs: Sequence[Task]) -> Task:
    data = {"on": [need.id for need in needs]}
    tx.note("task", verb, before.id, project_id=before.project_id, data=data)
    return whole(tx, recount(tx, before))


def edit(
    tx: Tx,
    task: Task | str,
    *,
    title: str = KEEP,
    description: str | None = KEEP,
    role: str | None = KEEP,
    priority: int = KEEP,
    files: Sequence[str] = KEEP,
    agent: str | None = None,
) -> Task:
    """Change what a task says; what is left out is kept, None clears it."""
    before = steered(tx, task, agent)
    paths = before.files if files is KEEP else [check_path(path) for path in files]
    if len(paths) > MAX_FILES:
        raise Invalid(f"{len(paths):,} files are too many; name their folders instead.")
    changed = tx.one(
        sql.EDIT,
        id=before.id,
        title=before.title if title is KEEP else clean_text(title, "The title", most=MAX_TITLE),
        description=_text(before.description, description, "The description"),
        role=_text(before.role, role, "The role"),
        priority=before.priority if priority is KEEP else check_priority(priority),
        files=encode_json(paths, "The files"),
    )
    assert changed is not None
    if before.state is S.RUNNING:  # it may keep other files busy now
        tx.run(sql.LET_GO, held_by=before.id)
    tx.note("task", "edit", before.id, project_id=before.project_id)
    return whole(tx, changed)


def _text(before: str | None, given: str | None, what: str) -> str | None:
    if given is KEEP:
        return before
    return clean_text(given, what) if given else None


# -- who may, and who is told ------------------------------------------------------------------


def lock(tx: Tx, project_id: str) -> str:
    """One change of a project's graph at a time: its counts are of several rows."""
    tx.serialize(f"tasks:{project_id}")
    return project_id


def locked(tx: Tx, task: Task | str, project: str | None = None) -> Task:
    """A task as it is, while nobody else changes its graph."""
    found = task if isinstance(task, Task) else find(tx, task, project)
    lock(tx, found.project_id)
    return sql.TASKS.get(tx, found.id)


def steered(tx: Tx, task: Task | str, agent: str | None) -> Task:
    """A task, for whoever may say what becomes of it: a person, whoever leads it, an admin."""
    found = locked(tx, task)
    speaker = speaker_of(tx, agent)
    if speaker.startswith("agent:") and speaker not in (found.lead, found.created_by):
        name = speaker.removeprefix("agent:")
        if not agents.get(tx, name).admin:
            raise Refused(
                f"{found.id} is led by {found.lead or found.created_by}, not by {name}; ask there.",
                id=found.id,
                lead=found.lead,
            )
    return found


def speaker_of(tx: Tx, agent: str | None) -> str:
    """Who speaks: the agent that was named, else the actor of the store."""
    return f"agent:{agents.get(tx, agent).name}" if agent else tx.actor


def working(tx: Tx, agent: str) -> Agent:
    """An agent that may be given work."""
    found = agents.get(tx, agent)
    if found.state is not AgentState.ACTIVE:
        raise Refused(f"{found.name} is retired; restore it, or take another.", id=found.id)
    return found


def tell(tx: Tx, mailbox: str | None, task: Task, what: str, reason: str | None = None) -> None:
    """Tell somebody once what became of a task, of this taking of it."""
    if mailbox is None:
        return
    mail.put_after(
        tx,
        None,
        mailbox,
        {
            "kind": "task",
            "what": what,
            "task": task.id,
            "key": task.key,
            "title": task.title,
            "state": task.state,
            "reason": reason,
        },
        key=f"{task.id}:{what}:{task.fence}",
        project=task.project_id,
        expires_at=tx.now + LETTER_MS,
    )


def tell_to_stop(tx: Tx, before: Task, what: str, reason: str | None) -> None:
    """Tell whoever has a task that it is no longer theirs."""
    if before.agent_id is not None and before.state in (S.RUNNING, S.SUBMITTED):
        name = agents.get(tx, before.agent_id).name
        tell(tx, f"agent:{name}", before, f"stop: {what}", reason)


def _reason(reason: str | None) -> str | None:
    return clean_text(reason, "The reason") if reason else None
