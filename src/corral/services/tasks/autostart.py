"""Ready tasks that start by themselves: which, by whom, and what the agent is told.

Only in projects that ask for it (`tasks.auto_start`), and only within what may go at once, what
each agent may have going, and what may be spent.
"""

from pathlib import Path
from typing import NamedTuple

from corral import config
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.charges import ops as charges
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import dispatch
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.domain.tasks import lifecycle, ops
from corral.domain.tasks.model import Task
from corral.kernel.prompt import Own, PromptPart, Quote, render
from corral.kernel.text import quoted
from corral.services.runs import request

MOST_AGENTS = 1_000
# An agent works in a place of its own, so it may change files there; for more it has to ask.
APPROVALS = ("edit",)


class Start(NamedTuple):
    task: Task
    agent: Agent
    project: Project


def worktrees_folder() -> Path:
    """Where the worktrees of tasks are, each below its project's id under its own."""
    return config.home() / "worktrees"


def to_start(tx: Tx) -> list[Start]:
    """The tasks that may be started now, and who is to do them."""
    room = dispatch.room_for(tx)
    team: list[Agent] | None = None
    found: list[Start] = []
    for project_id in lifecycle.ready_projects(tx):
        if not settings.value(tx, "tasks.auto_start", project=project_id):
            continue
        most = int(settings.value(tx, "tasks.max_started", project=project_id))
        free = min(most - lifecycle.count_in_runs(tx, project_id), room - len(found))
        if free <= 0:
            continue
        if team is None:
            team = agents.list_agents(tx, limit=MOST_AGENTS).items
        project = projects.get(tx, project_id)
        for task in lifecycle.startable(tx, project_id):
            agent = _agent_for(tx, task, team, found)
            if free and agent is not None:
                found.append(Start(task, agent, project))
                free -= 1
    return found


def _agent_for(tx: Tx, task: Task, team: list[Agent], chosen: list[Start]) -> Agent | None:
    """The agent that is to do a task: its assignee, or of its role the first that may start."""
    for agent in team:
        fits = agent.id == task.assignee_id if task.assignee_id else agent.role == task.role
        if not fits or task.role is None is task.assignee_id:
            continue
        if not (agent.provider or agent.command):
            continue
        # One of each in a round, so that the next one is looked at with this one's run going.
        if any(start.agent.id == agent.id for start in chosen):
            continue
        if dispatch.agent_has_room(tx, agent.id) and not charges.over_budget(
            tx, "none", project_id=task.project_id, agent_id=agent.id
        ):
            return agent
    return None


def begin(tx: Tx, start: Start, dir: str) -> Run:
    """Take a task for an agent and ask for its run, both or neither."""
    task, agent, project = start
    run = request.ask(
        tx,
        request.Wish(
            title=task.title,
            prompt=prompt_of(task),
            agent=agent.id,
            project=project.id,
            dir=dir,
            env={"CORRAL_TASK": task.id},
            approvals=APPROVALS,
        ),
    )
    lifecycle.claim_started(tx, task, agent.id, run=run.id, dir=dir)
    return run


def not_started(tx: Tx, task: Task, reason: str) -> None:
    """Tell whoever leads a task, once, that it cannot be started."""
    ops.tell(tx, task.lead, task, "not started", reason)


def prompt_of(task: Task) -> str:
    """What the agent of a task is told."""
    who = quoted(task.created_by)
    told = "\n\n".join(text for text in (task.title, task.description) if text)
    parts: list[PromptPart] = [
        Own(f"Your task is {task.id}. Do what {who}, who declared it, asks for:"),
        Quote(f"task {quoted(task.key)} ({task.id}), declared by {who}", told),
    ]
    if task.files:
        parts.append(Quote(f"files that {task.id} changes", "\n".join(task.files)))
    if task.reason:
        parts.append(Quote(f"reason why {task.id} came back after an earlier try", task.reason))
    if task.check_command:
        check = f"command that has to succeed before {task.id} is accepted"
        parts.append(Quote(check, task.check_command))
    closing = (
        "You work in a git worktree of your own; commit there what belongs to the task. When it is "
        f"done, say so with what shows it: `corral task submit {task.id} --commit HASH --ran CMD "
        f"CODE --text WHAT`. When it cannot be done: `corral task fail {task.id} REASON`. Until "
        "you say one of the two it is not done."
    )
    return render([*parts, Own(closing)])
