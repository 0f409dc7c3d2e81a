"""Who calls, and where they work: told by a token or the environment, and never by an argument.

An agent may be hostile, and so may be whatever talked it into something. So a run and a session
that are named must be the agent's own, and what a tool does is done in the name of its caller.
"""

import os
from typing import TYPE_CHECKING

import msgspec

from corral import config
from corral.kernel.errors import Refused

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.api.tokens import Who
    from corral.domain.agents.model import Agent
    from corral.domain.projects.model import Project

HOW = (
    "start the agent with `corral run --agent NAME`, or give this server CORRAL_AGENT in its "
    "environment"
)


class Caller(msgspec.Struct, frozen=True):
    """An agent that calls tools, and where it works."""

    id: str
    """Under which its idempotency keys are kept."""
    agent: "Agent"
    run: str | None
    session: str | None
    works_in: "Project | None"

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def mailbox(self) -> str:
        return f"agent:{self.agent.name}"

    @property
    def mailboxes(self) -> list[str]:
        """Its own, and that of the conversation that it is in."""
        return [self.mailbox] + ([f"session:{self.session}"] if self.session else [])

    @property
    def owner(self) -> str:
        """As whom it takes letters out: two runs of one agent are two owners."""
        return f"{self.mailbox}:{self.run}" if self.run else self.mailbox

    @property
    def project_id(self) -> str | None:
        """The project that it works in; None when none is known."""
        return self.works_in.id if self.works_in else None

    @property
    def project(self) -> str:
        """The project that it works in; Refused when none is known."""
        if self.works_in is None:
            raise Refused(
                "It is not known which project you work in; start the agent in a project's "
                "directory (`corral project register`), or call /mcp?project=ID.",
                reason="project_unknown",
            )
        return self.works_in.id


def from_environment(store: "Corral") -> Caller:
    """Return the agent of the run that this server belongs to; outside any run, the agent that
    `CORRAL_AGENT`, `CORRAL_RUN` and `CORRAL_SESSION` name."""
    name = config.agent_name()
    if not name:
        raise Refused(f"No agent is known here; {HOW}.")
    return _caller(
        store,
        store.agents.get(name),
        run=config.run_id(),
        session=config.session_id(),
        cwd=os.getcwd(),
    )


def from_token(store: "Corral", who: "Who", asked: dict[str, str]) -> Caller:
    """Whoever shows a token; the URL may say which run, session or project of theirs it is."""
    if who.agent is None:
        raise Refused(
            f"The token {who.name} is no agent's; make one with `corral token create NAME --agent "
            "AGENT`.",
            reason="no_agent",
        )
    caller = _caller(
        store,
        store.agents.get(who.agent),
        id=who.id,
        run=asked.get("run"),
        session=asked.get("session"),
        project=asked.get("project") or who.project_id,
    )
    if who.project_id is not None and caller.project != who.project_id:
        raise Refused(
            f"The token {who.name} is for the project {who.project_id}, not for {caller.project}.",
            reason="other_project",
        )
    return caller


def _caller(
    store: "Corral",
    agent: "Agent",
    *,
    id: str | None = None,
    run: str | None,
    session: str | None,
    project: str | None = None,
    cwd: str | None = None,
) -> Caller:
    if agent.state != "active":
        raise Refused(f"The agent {agent.name} is {agent.state}, and does nothing any more.")
    named = project
    if run is not None:
        found = store.runs.get(run)
        if found.agent_id != agent.id:
            raise Refused(
                f"{found.id} is not a run of {agent.name}.", run=found.id, reason="other_run"
            )
        run, session, named = found.id, session or found.session_id, named or found.project_id
    if session is not None:
        held = store.sessions.get(session)
        if held.agent_id != agent.id:
            raise Refused(
                f"{held.id} is not a session of {agent.name}.",
                session=held.id,
                reason="other_session",
            )
        session, named = held.id, named or held.project_id
    works_in = store.projects.get(named) if named is not None else None
    if works_in is None and cwd is not None:
        works_in = store.projects.around(cwd)
    return Caller(id or f"agent:{agent.id}", agent, run, session, works_in)
