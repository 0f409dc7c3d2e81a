"""The calling agent: known by its run, see `services/identity.py`."""

from corral import config
from corral.kernel.errors import Invalid, Refused


def agent(given: str | None) -> str | None:
    """Return the calling agent: that of the run, else of CORRAL_AGENT, else the given one.

    Raises Refused when an agent names another one. Open the store first: it finds the run.
    """
    own = config.agent_name()
    if own is not None and given is not None and given != own:
        raise Refused(
            f"You are {own}, and cannot speak as {given}; leave --agent out.",
            agent=own,
            reason="other_agent",
        )
    return given or own


def required_agent(given: str | None) -> str:
    """The agent that speaks, where only an agent can."""
    found = agent(given)
    if found is None:
        raise Invalid("Say which agent it is: --agent NAME, or CORRAL_AGENT in the environment.")
    return found


def run(given: str | None = None) -> str | None:
    """The run inside of which this was called, if there is one."""
    return given or config.run_id()
