"""Starting agents for ready tasks: which tasks, which agent, and the agent's prompt.

Only in projects with `tasks.auto_start`, and only within the limits of the machine, the project and
each agent, and within the budgets.
"""

import os
from typing import TYPE_CHECKING, NamedTuple

from corral import config
from corral.adapters.processes import process
from corral.adapters.worktrees import worktrees
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.charges import budgets
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import dispatch
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.domain.tasks import lifecycle
from corral.domain.tasks.model import Task
from corral.domain.tasks.notifications import notify
from corral.kernel.display_text import quote_inline
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.prompt import OwnText, PromptPart, Quote, render
from corral.services.runs import request
from corral.services.runs.dispatch import start_queued

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_AGENTS = 1_000
# The agent works in a worktree of its own, so it may edit files without asking.
APPROVALS = ("edit",)


class PlannedStart(NamedTuple):
    """A task, and the agent that is about to be started for it."""

    task: Task
    agent: Agent
    project: Project


def start_ready(database: "Database") -> list[Run]:
    """Start the agents of ready tasks; see `InternalTasks.start_ready`."""
    # Projects of other machines must not use up the slots and agents of this one.
    local = [
        project for project in database.read(list_startable_projects) if os.path.isdir(project.dir)
    ]
    started = []
    for start in database.read(lambda tx: plan_starts(tx, local)):
        run = _start(database, start)
        started += [run] if run is not None else []
    if started:
        start_queued(database)
    return started


def _start(database: "Database", start: PlannedStart) -> Run | None:
    folder = config.worktrees_folder() / start.project.id
    branch = worktrees.make_branch_name(start.task.key, start.task.id)
    try:
        config.make_private_folder(folder)
        dir = worktrees.create(
            start.project.dir, str(folder / start.task.id), branch, own_branch=True
        )
        return database.write(lambda tx: start_task(tx, start, dir))
    except Conflict:
        return None  # another process claimed it, or its files are locked
    except (Refused, Invalid) as error:
        reason = str(error)
        database.write(lambda tx: notify_not_started(tx, start.task, reason))
        return None


def list_startable_projects(tx: Tx) -> list[Project]:
    """List the projects of all machines that have a ready task and start tasks automatically."""
    return [
        projects.get(tx, project_id)
        for project_id in lifecycle.list_ready_projects(tx)
        if settings.get_value(tx, "tasks.auto_start", project=project_id)
    ]


def plan_starts(tx: Tx, local_projects: list[Project]) -> list[PlannedStart]:
    """Return the tasks of these projects that this machine may start now, each with its agent."""
    slots = dispatch.count_free_slots(tx, host=process.host())
    team: list[Agent] | None = None
    starts: list[PlannedStart] = []
    for project in local_projects:
        max_started = int(settings.get_value(tx, "tasks.max_started", project=project.id))
        free = min(max_started - lifecycle.count_in_runs(tx, project.id), slots - len(starts))
        if free <= 0:
            continue
        if team is None:
            team = agents.list_agents(tx, limit=MAX_AGENTS).items
        for task in lifecycle.list_startable(tx, project.id):
            if free <= 0:
                break
            agent = _choose_agent(tx, task, team, starts)
            if agent is not None:
                starts.append(PlannedStart(task, agent, project))
                free -= 1
    return starts


def _choose_agent(
    tx: Tx, task: Task, team: list[Agent], planned: list[PlannedStart]
) -> Agent | None:
    """Return the assignee of a task, or the first available agent of its role."""
    if task.assignee_id is None and task.role is None:
        return None
    for agent in team:
        suits = agent.id == task.assignee_id if task.assignee_id else agent.role == task.role
        if not suits:
            continue
        if not (agent.provider or agent.command):
            continue
        # At most one start per agent and pass: the next pass counts this start in its limits.
        if any(start.agent.id == agent.id for start in planned):
            continue
        if dispatch.has_agent_capacity(tx, agent.id) and not budgets.find_exceeded_budget(
            tx, project_id=task.project_id, agent_id=agent.id
        ):
            return agent
    return None


def start_task(tx: Tx, start: PlannedStart, dir: str) -> Run:
    """Request a run and claim the task for it, in one transaction."""
    task, agent, project = start
    run = request.request_run(
        tx,
        request.RunRequest(
            title=task.title,
            prompt=build_prompt(task),
            agent=agent.id,
            project=project.id,
            dir=dir,
            env={"CORRAL_TASK": task.id},
            approvals=APPROVALS,
        ),
    )
    lifecycle.claim_started(tx, task, agent.id, run=run.id, dir=dir)
    return run


def notify_not_started(tx: Tx, task: Task, reason: str) -> None:
    """Notify the lead of a task, once, that its agent cannot be started."""
    notify(tx, task.lead, task, "not started", reason)


def build_prompt(task: Task) -> str:
    """Return the prompt of the agent that is started for a task."""
    author = quote_inline(task.created_by)
    text = "\n\n".join(part for part in (task.title, task.description) if part)
    parts: list[PromptPart] = [
        OwnText(f"Your task is {task.id}. Do what {author}, who declared it, asks for:"),
        Quote(f"task {quote_inline(task.key)} ({task.id}), declared by {author}", text),
    ]
    if task.files:
        parts.append(Quote(f"files that {task.id} changes", "\n".join(task.files)))
    if task.reason:
        parts.append(
            Quote(f"reason why {task.id} was returned after an earlier attempt", task.reason)
        )
    if task.check_command:
        source = f"command that must succeed before {task.id} is accepted"
        parts.append(Quote(source, task.check_command))
    closing = (
        "You work in your own git worktree; commit there what belongs to the task. When the task "
        f"is done, submit it with evidence: `corral task submit {task.id} --commit HASH --ran CMD "
        f"CODE --text WHAT`. If it cannot be done, run `corral task fail {task.id} REASON`. The "
        "task stays open until you run one of the two commands."
    )
    return render([*parts, OwnText(closing)])
