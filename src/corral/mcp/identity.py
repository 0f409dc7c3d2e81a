"""The agent that calls a tool, and its run, session and project.

The identity comes from a token or the environment, never from an argument: an agent may be hostile,
or controlled by text it read. A run or session that is named must belong to the agent.
"""

import os
from typing import TYPE_CHECKING

import msgspec

from corral.kernel.errors import Refused

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.agents.model import Agent
    from corral.domain.projects.model import Project
    from corral.services.tokens import TokenIdentity


class Caller(msgspec.Struct, frozen=True):
    """An agent that calls tools, and where it works."""

    id: str
    """The owner of its idempotency keys."""
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
        """The agent's mailbox, and that of its session."""
        return [self.mailbox] + ([f"session:{self.session}"] if self.session else [])

    @property
    def owner(self) -> str:
        """The owner of claimed messages: two runs of one agent are two owners."""
        return f"{self.mailbox}:{self.run}" if self.run else self.mailbox

    @property
    def project_id(self) -> str | None:
        """The id of the project; None if it is unknown."""
        return self.works_in.id if self.works_in else None

    @property
    def project(self) -> str:
        """The id of the project; raises Refused if it is unknown."""
        if self.works_in is None:
            raise Refused(
                "Your project is unknown. Start the agent in a project's directory (`corral "
                "project register`), or call /mcp?project=ID.",
                reason="project_unknown",
            )
        return self.works_in.id


def caller_from_environment(store: "Corral") -> Caller:
    """Return the agent of the run that this server belongs to; outside any run, the agent that
    `CORRAL_AGENT`, `CORRAL_RUN` and `CORRAL_SESSION` name."""
    name = store.caller.agent
    if not name:
        raise Refused(
            "The calling agent is unknown. Start it with `corral run --agent NAME`, or set "
            "CORRAL_AGENT in the environment of this server."
        )
    return _make_caller(
        store,
        store.agents.get(name),
        run=store.caller.run,
        session=store.caller.session,
        cwd=os.getcwd(),
    )


def caller_from_token(store: "Corral", who: "TokenIdentity", query: dict[str, str]) -> Caller:
    """Return the agent of a token; the query may name its run, session and project."""
    if who.agent is None:
        raise Refused(
            f"Token {who.name} does not belong to an agent. Create one with `corral token create "
            "NAME --agent AGENT`.",
            reason="no_agent",
        )
    caller = _make_caller(
        store,
        store.agents.get(who.agent),
        id=who.key_namespace,
        run=query.get("run"),
        session=query.get("session"),
        project=query.get("project") or who.project_id,
    )
    if who.project_id is not None and caller.project != who.project_id:
        raise Refused(
            f"Token {who.name} is limited to project {who.project_id}, not {caller.project}.",
            reason="other_project",
        )
    return caller


def _make_caller(
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
        raise Refused(f"Agent {agent.name} is {agent.state}. Restore it to use its tools.")
    if run is not None:
        run_record = store.runs.get(run)
        if run_record.agent_id != agent.id:
            raise Refused(
                f"{run_record.id} is not a run of {agent.name}.",
                run=run_record.id,
                reason="other_run",
            )
        run = run_record.id
        session = session or run_record.session_id
        project = project or run_record.project_id
    if session is not None:
        session_record = store.sessions.get(session)
        if session_record.agent_id != agent.id:
            raise Refused(
                f"{session_record.id} is not a session of {agent.name}.",
                session=session_record.id,
                reason="other_session",
            )
        session = session_record.id
        project = project or session_record.project_id
    works_in = store.projects.get(project) if project is not None else None
    if works_in is None and cwd is not None:
        works_in = store.projects.containing(cwd)
    return Caller(id or f"agent:{agent.id}", agent, run, session, works_in)
