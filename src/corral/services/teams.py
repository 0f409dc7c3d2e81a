"""Teams: a lead and workers from a file, each an agent with Corral's tools, started together."""

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from corral.adapters.providers import registry
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentLimits
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.settings import ops as settings
from corral.domain.tasks import declare
from corral.domain.tasks import queries as tasks
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.pagination import MAX_LIMIT
from corral.kernel.unset import UNSET
from corral.kernel.validation import convert
from corral.services.runs import dispatch, request

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_MEMBERS = 50


class TeamMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member of a team, as described in the team file."""

    name: str
    role: str | None = None
    provider: str | None = None
    command: str | None = None
    model: str | None = None
    instructions: str | None = None
    limits: AgentLimits = AgentLimits()
    prompt: str | None = None
    approve: tuple[str, ...] = ("edit",)
    """The permission prompts that are approved automatically: edit, run, trust or all."""
    env: dict[str, str] = {}


class Team(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A team file."""

    lead: TeamMember
    workers: list[TeamMember] = []
    goal: str | None = None
    project: str | None = None
    """The project directory, relative to the file."""
    tasks: list[dict[str, Any]] = []


class StartedMember(msgspec.Struct, frozen=True):
    """The result for one member of a team."""

    agent: str
    role: str | None
    run_id: str
    result: Literal["started", "queued", "already_running"]


def start_team(database: "Database", team: Mapping[str, Any], dir: str) -> list[StartedMember]:
    """Create or update the agents of a team, declare its tasks, and start its members.

    Everything but the start is one transaction. Idempotent: members that run already are skipped,
    and tasks that the project has are not declared again.
    """
    parsed = _parse(team)
    _check_programs(parsed)
    members = database.write(lambda tx: _queue(tx, parsed, dir))
    dispatch.start_queued(database)
    return [_refresh(database, member) for member in members]


def _refresh(database: "Database", member: StartedMember) -> StartedMember:
    if member.result != "queued":
        return member
    run = database.read(lambda tx: runs.get(tx, member.run_id))
    result: Literal["started", "queued"] = "queued" if run.state == "queued" else "started"
    return msgspec.structs.replace(member, result=result)


def _parse(data: Mapping[str, Any]) -> Team:
    try:
        team = convert(data, Team)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"Invalid team: {error}. A team has a lead and workers, and optionally a goal and "
            "tasks. Each member has a name, a provider or command, and optionally "
            f"{', '.join(TeamMember.__struct_fields__[1:])}."
        ) from None
    names = [member.name for member in (team.lead, *team.workers)]
    if len(names) > MAX_MEMBERS:
        raise Invalid(f"A team has at most {MAX_MEMBERS} members, not {len(names)}.")
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise Invalid(
            f"The team has two members named {duplicate}. Rename one of them.", name=duplicate
        )
    for member in (team.lead, *team.workers):
        if member.provider is None and member.command is None:
            raise Invalid(
                f"{member.name} has no provider and no command. Give one of them.",
                name=member.name,
            )
    return team


def _check_programs(team: Team) -> None:
    """Refuse a team with a member whose program is missing: its lead would wait for it."""
    for member in (team.lead, *team.workers):
        if member.provider is None or member.command is not None or "PATH" in member.env:
            continue
        program = registry.get_provider(member.provider).program
        if program and shutil.which(program) is None:
            raise Refused(
                f"Cannot start {member.name}: {program} is not on the PATH. No member was started. "
                f"Install it, or give {member.name} another provider or a command.",
                name=member.name,
                program=program,
            )


def _queue(tx: Tx, team: Team, dir: str) -> list[StartedMember]:
    project = projects.register(tx, dir)
    for member in (team.lead, *team.workers):
        _update_agent(tx, member)
    _declare_tasks(tx, team, project)
    members = [_request_run(tx, team.lead, project, _render_lead_prompt(team))]
    return members + [
        _request_run(tx, worker, project, _render_worker_prompt(team, worker))
        for worker in team.workers
    ]


def _update_agent(tx: Tx, member: TeamMember) -> Agent:
    """Create or update the agent of a member. Values that the file omits are not changed."""
    content = {
        name: getattr(member, name)
        for name in ("role", "provider", "command", "model", "instructions")
    }
    try:
        existing = agents.get_active(tx, member.name)
    except NotFound:
        agent = agents.create(tx, member.name, **content, limits=member.limits)
    else:
        changes = {name: value for name, value in content.items() if value is not None}
        limits = member.limits if member.limits != AgentLimits() else UNSET
        agent = agents.edit(tx, existing.id, **changes, limits=limits)
    settings.set_value(tx, "runs.mcp_tools", True, scope=f"agent:{agent.name}")
    return agent


def _declare_tasks(tx: Tx, team: Team, project: Project) -> None:
    """Declare the tasks that the project does not have yet."""
    new = []
    for task in team.tasks:
        try:
            tasks.find(tx, str(task.get("key")), project.id)
        except NotFound:
            new.append(task)
    if new:
        declare.declare(tx, project.id, new, lead=f"agent:{team.lead.name}")


def _request_run(tx: Tx, member: TeamMember, project: Project, prompt: str) -> StartedMember:
    id = agents.get(tx, member.name).id
    live = runs.list_runs(tx, project=project.id, live=True, limit=MAX_LIMIT).items
    own = next((run for run in live if run.agent_id == id), None)
    if own is not None:
        return StartedMember(member.name, member.role, own.id, "already_running")
    run_request = request.RunRequest(
        prompt=member.prompt or prompt,
        agent=member.name,
        project=project.dir,
        approvals=member.approve,
        env=member.env,
    )
    return StartedMember(
        member.name, member.role, request.request_run(tx, run_request).id, "queued"
    )


def _render_lead_prompt(team: Team) -> str:
    workers = ", ".join(
        f"{worker.name} ({worker.role})" if worker.role else worker.name for worker in team.workers
    )
    return "\n\n".join(
        (
            f"You are {team.lead.name}, the lead of a team: {workers or 'no workers yet'}.",
            f"The goal: {team.goal}" if team.goal else "The goal is in the tasks.",
            "You have Corral's tools. Begin with whoami and task_list. Split the remaining work "
            "into tasks with task_add. Review submitted tasks and decide with task_review. Answer "
            "letters (inbox with wait_seconds, then ack). When every task is done, tell the team "
            "with send what was achieved and what was not.",
        )
    )


def _render_worker_prompt(team: Team, worker: TeamMember) -> str:
    identity = f"You are {worker.name}" + (f", {worker.role}," if worker.role else "")
    return (
        f"{identity} in a team led by {team.lead.name}. You have Corral's tools. Begin with "
        "whoami, then claim one task after another with task_claim: lock the files you change, do "
        "the work, task_submit with evidence, lock_release. When no task is ready, read inbox with "
        f"wait_seconds and check again. Stop when {team.lead.name} says that all tasks are done."
    )
