"""Who calls: the agent that Corral started is known by its environment, and is nobody else."""

import os

from corral.kernel.errors import Invalid, Refused


def agent(given: str | None) -> str | None:
    """The agent that speaks: the one in the environment, else the one that was named.

    An agent that names another one is refused.
    """
    own = os.environ.get("CORRAL_AGENT") or None
    if own is not None and given is not None and given != own:
        raise Refused(f"You are {own}, and cannot speak as {given}; leave --agent out.", agent=own)
    return given or own


def required_agent(given: str | None) -> str:
    """The agent that speaks, where only an agent can."""
    found = agent(given)
    if found is None:
        raise Invalid("Say which agent it is: --agent NAME, or CORRAL_AGENT in the environment.")
    return found


def run(given: str | None = None) -> str | None:
    """The run inside of which this was called, if there is one."""
    return given or os.environ.get("CORRAL_RUN") or None
