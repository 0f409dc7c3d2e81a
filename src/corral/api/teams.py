"""A team from a file: a lead and workers, each an agent with Corral's tools, started together.

All that a file asks for is one transaction; starting it again starts only those who do not run.
"""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from corral.adapters.providers import registry
from corral.api.operation import Room
from corral.api.runs import Runs
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState, Limits
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.settings import ops as settings
from corral.domain.tasks import declare
from corral.domain.tasks import ops as tasks
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.pagination import MAX_LIMIT
from corral.kernel.text import convert
from corral.kernel.unset import KEEP
from corral.services.runs import request

MOST = 50


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent of a team, as a file has it."""

    name: str
    role: str | None = None
    provider: str | None = None
    command: str | None = None
    model: str | None = None
    instructions: str | None = None
    limits: Limits = Limits()
    prompt: str | None = None
    approve: tuple[str, ...] = ("edit",)
    """What is answered with yes when it asks: edit, run, trust, all."""
    env: dict[str, str] = {}


class Team(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lead: Member
    workers: list[Member] = []
    goal: str | None = None
    project: str | None = None
    """A directory, beside the file."""
    tasks: list[dict[str, Any]] = []


class Started(msgspec.Struct, frozen=True):
    """What became of one member."""

    agent: str
    role: str | None
    run_id: str
    did: Literal["started", "queued", "runs already"]


class Teams(Room):
    """Agents that work together."""

    noun = "team"

    def start(self, team: Mapping[str, Any], *, dir: str) -> Sequence[Started]:
        """Make a team's agents as they are described, declare its tasks, and start each that does
        not run yet, with its identity and Corral's tools. `dir` is its project's directory."""
        wanted = _read(team)
        _check_programs(wanted)
        found = self._database.write(lambda tx: _queue(tx, wanted, dir))
        Runs(self._database).start_queued()
        return [self._as_it_is(each) for each in found]

    def _as_it_is(self, member: Started) -> Started:
        if member.did != "queued":
            return member
        run = Runs(self._database).get(member.run_id)
        did: Literal["started", "queued"] = "queued" if run.state == "queued" else "started"
        return msgspec.structs.replace(member, did=did)


def _read(given: Mapping[str, Any]) -> Team:
    try:
        team = convert(given, Team)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"This team cannot be: {error}. It has a lead and workers, each with a name and a "
            f"provider or command, and perhaps {', '.join(Member.__struct_fields__[1:])}; and "
            "perhaps a goal and tasks."
        ) from None
    names = [member.name for member in (team.lead, *team.workers)]
    if len(names) > MOST:
        raise Invalid(f"A team has at most {MOST} members, not {len(names)}.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Invalid(f"{twice} is in the team twice; give each its own name.", name=twice)
    for member in (team.lead, *team.workers):
        if member.provider is None and member.command is None:
            raise Invalid(
                f"Say how {member.name} is started: give a provider or a command.",
                name=member.name,
            )
    return team


def _check_programs(team: Team) -> None:
    """A team whose lead would wait for somebody who cannot be started is not begun."""
    for member in (team.lead, *team.workers):
        if member.provider is None or member.command is not None or "PATH" in member.env:
            continue
        program = registry.find(member.provider).program
        if program and shutil.which(program) is None:
            raise Refused(
                f"{program} is not on the PATH, so {member.name} could not be started, and nobody "
                f"was; install it, or give {member.name} another provider or a command.",
                name=member.name,
                program=program,
            )


def _queue(tx: Tx, team: Team, dir: str) -> list[Started]:
    project = projects.register(tx, dir)
    for member in (team.lead, *team.workers):
        _enlist(tx, member)
    _declare(tx, team, project)
    done = [_ask(tx, team.lead, project, _lead_prompt(team))]
    return done + [
        _ask(tx, worker, project, _worker_prompt(team, worker)) for worker in team.workers
    ]


def _enlist(tx: Tx, member: Member) -> Agent:
    """The agent as the file describes it; what the file leaves out of a known one is kept."""
    said = {
        name: getattr(member, name)
        for name in ("role", "provider", "command", "model", "instructions")
    }
    try:
        known = agents.get(tx, member.name)
    except NotFound:
        agent = agents.create(tx, member.name, **said, limits=member.limits)
    else:
        if known.state is not AgentState.ACTIVE:
            raise Refused(
                f"{known.name} is {known.state}; restore it with `corral agent restore "
                f"{known.name}`, or take another name.",
                name=known.name,
            )
        given = {name: value for name, value in said.items() if value is not None}
        limits = member.limits if member.limits != Limits() else KEEP
        agent = agents.edit(tx, known.id, **given, limits=limits)
    settings.set_value(tx, "runs.tools", True, scope=f"agent:{agent.name}")
    return agent


def _declare(tx: Tx, team: Team, project: Project) -> None:
    """Declare the tasks that the project does not have yet."""
    new = []
    for task in team.tasks:
        try:
            tasks.find(tx, str(task.get("key")), project.id)
        except NotFound:
            new.append(task)
    if new:
        declare.declare(tx, project.id, new, lead=f"agent:{team.lead.name}")


def _ask(tx: Tx, member: Member, project: Project, prompt: str) -> Started:
    id = agents.get(tx, member.name).id
    going = runs.list_runs(tx, project=project.id, live=True, limit=MAX_LIMIT).items
    here = next((run for run in going if run.agent_id == id), None)
    if here is not None:
        return Started(member.name, member.role, here.id, "runs already")
    wish = request.Wish(
        prompt=member.prompt or prompt,
        agent=member.name,
        project=project.dir,
        approvals=member.approve,
        env=member.env,
    )
    return Started(member.name, member.role, request.ask(tx, wish).id, "queued")


def _lead_prompt(team: Team) -> str:
    mates = ", ".join(
        f"{worker.name} ({worker.role})" if worker.role else worker.name for worker in team.workers
    )
    return "\n\n".join(
        (
            f"You are {team.lead.name}, and lead a team: {mates or 'nobody but you yet'}.",
            f"The goal: {team.goal}" if team.goal else "The goal is in the tasks.",
            "You have Corral's tools. Begin with whoami and task_list. Divide what is not divided "
            "yet into tasks with task_add. Judge what is submitted with task_judge, after you have "
            "looked at it; answer letters (inbox with wait_seconds, then ack). When every task is "
            "done, tell the team with send, and say what was reached and what was not.",
        )
    )


def _worker_prompt(team: Team, worker: Member) -> str:
    who = f"You are {worker.name}" + (f", {worker.role}," if worker.role else "")
    return (
        f"{who} in a team that {team.lead.name} leads. You have Corral's tools. Begin with whoami, "
        "then take tasks with task_claim, one after another: lock the files you change, do it, "
        "task_submit with evidence, lock_release. When nothing is ready, read inbox with "
        f"wait_seconds and look again. End when {team.lead.name} says that all is done."
    )
