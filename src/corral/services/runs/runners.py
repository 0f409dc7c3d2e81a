"""Runners: the program that a run starts.

The runner is the command of the request, the agent or provider that was named, the provider of the
session, the command of the project, or the first agent CLI that is installed.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters.providers import registry
from corral.db.tx import Tx
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.words import split_command

if TYPE_CHECKING:
    from corral.domain.agents.model import Agent
    from corral.domain.projects.model import Project
    from corral.domain.sessions.model import Session

PREFERRED_PROVIDERS = ("claude", "codex", "gemini", "opencode", "qwen", "copilot")


class Runner(NamedTuple):
    """The program to start, its provider and its agent."""

    provider: str
    program: str
    extra: list[str]
    agent: "Agent | None" = None


def get_runner(tx: Tx, name: str) -> Runner:
    """Return the runner of an agent or of a provider.

    Raises NotFound for an unknown name, Conflict for a retired agent, and Invalid for an agent that
    has neither a provider nor a command.
    """
    from corral.domain.agents import ops as agents
    from corral.domain.agents.model import AgentState

    try:
        agent = agents.get(tx, name)
    except (NotFound, Invalid):
        providers = [provider for provider in registry.list_providers() if provider != "plain"]
        if name in providers:
            return _make_provider_runner(name)
        raise NotFound(
            f"No agent named {name!r}. List agents with `corral agent list`, or use a provider: "
            f"{', '.join(providers)}.",
            name=name,
            reason="unknown_agent",
        ) from None
    if agent.state is not AgentState.ACTIVE:
        raise Conflict(
            f"The agent {agent.name} is retired. Restore it with `corral agent restore "
            f"{agent.name}`, or use another."
        )
    if agent.command:
        return _parse_command_runner(agent.command, agent)
    if agent.provider is None:
        raise Invalid(
            f"The agent {agent.name} has no provider and no command. Set one with "
            f"`corral agent edit {agent.name} --provider claude`.",
            reason="no_provider",
        )
    return _make_provider_runner(agent.provider)._replace(agent=agent)


def choose_runner(project: "Project | None", session: "Session | None") -> Runner:
    """Return the runner of a request that names no agent and no command.

    Raises Refused when neither the session nor the project has one and no agent CLI is installed.
    """
    if session is not None and session.provider is not None:
        return _make_provider_runner(session.provider)
    if project is not None and project.command:
        return _parse_command_runner(project.command)
    if (installed := find_installed_provider()) is None:
        raise Refused(
            f"No agent CLI is on the PATH ({', '.join(PREFERRED_PROVIDERS)}). Install one, name "
            "one with --agent (`scripted` is built in, for trying things out), or give a command "
            "after `--`."
        )
    return _make_provider_runner(installed)


def make_command_runner(command: Sequence[str]) -> Runner:
    """Return the runner of a plain command; its program decides which provider it is."""
    if not command or not command[0]:
        raise Invalid("Give the command to run.")
    return Runner(registry.find_by_program(command[0]).name, command[0], list(command[1:]))


def _parse_command_runner(command: str, agent: "Agent | None" = None) -> Runner:
    program, *arguments = split_command(command)
    provider = (agent.provider if agent else None) or registry.find_by_program(program).name
    return Runner(provider, program, arguments, agent)


def _make_provider_runner(name: str) -> Runner:
    return Runner(name, registry.get_provider(name).program, [])


def find_installed_provider() -> str | None:
    """Return the first preferred provider whose program is on the PATH."""
    import shutil

    names = (
        name for name in PREFERRED_PROVIDERS if shutil.which(registry.get_provider(name).program)
    )
    return next(names, None)


def require_program(name: str, runner: Runner, env: Mapping[str, str]) -> None:
    """Refuse an agent whose program is not on this machine.

    A program on a relative path is not checked: it is resolved in the working directory.
    """
    import shutil

    program, path = runner.program, env.get("PATH", os.environ.get("PATH", os.defpath))
    searched = [program] if "/" in program else path.split(os.pathsep)
    if not all(map(os.path.isabs, searched)) or shutil.which(program, path=path):
        return
    where = "" if "/" in program else " on the PATH"
    raise Refused(
        f"Cannot start {name}: there is no program {program}{where}. Install it, or use another "
        "agent (`scripted` is built in, for trying things out).",
        agent=name,
        program=program,
        reason="program_missing",
    )
