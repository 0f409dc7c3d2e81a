"""Whom a process acts as, and the run that it belongs to."""

from typing import NamedTuple

CHECK_ACTOR = "check"
"""The actor of a check or a script that Corral runs outside any run."""


class CallerIdentity(NamedTuple):
    """Whom the process that opened a store acts as."""

    agent: str | None
    """The name of the agent; None for people and for programs without an agent."""
    run: str | None
    session: str | None
    actor: str
    """The author of changes in the event log."""
    owner: str
    """The owner of the locks that the process takes: an agent, session, run or user."""
    mailbox: str
    """The mailbox of the process: that of its agent, session or user."""


def identify_actor(actor: str, run: str | None = None) -> CallerIdentity:
    """Return the identity of an actor, such as `agent:ada`, whose process is in `run`."""
    agent = actor.removeprefix("agent:") if actor.startswith("agent:") else None
    return CallerIdentity(agent, run, None, actor, actor, actor)


class RunIdentity(NamedTuple):
    """The run that a process belongs to; the process acts with this identity."""

    run: str | None
    """None: a check or a script that Corral itself runs, outside any run."""
    agent_id: str | None
    agent: str | None
    """The name of the run's agent; a run may have none."""
    session: str | None
    project_id: str | None

    @property
    def actor(self) -> str:
        """The actor in recorded events; never a person."""
        if self.agent is not None:
            return f"agent:{self.agent}"
        return f"run:{self.run}" if self.run is not None else CHECK_ACTOR

    @property
    def owner(self) -> str:
        """The owner of the locks that the process takes."""
        if self.agent is None and self.session is not None:
            return f"session:{self.session}"
        return self.actor

    @property
    def mailbox(self) -> str:
        """The mailbox of the process."""
        if self.agent is None and self.session is None:
            return f"queue:{self.run or 'check'}"
        return self.owner

    @property
    def caller(self) -> CallerIdentity:
        """The identity that the process acts with."""
        return CallerIdentity(
            self.agent, self.run, self.session, self.actor, self.owner, self.mailbox
        )
