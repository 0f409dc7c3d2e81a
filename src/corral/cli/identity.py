"""The calling agent and run, from the environment; see `services/identity.py`."""

from corral import config
from corral.kernel.errors import Invalid, Refused


def agent(name: str | None) -> str | None:
    """Return the calling agent: that of the run, else CORRAL_AGENT, else `name`.

    Raises Refused when an agent names another one. Open the store first: it identifies the run.
    """
    own = config.agent_name()
    if own is not None and name is not None and name != own:
        raise Refused(
            f"Agent {own} cannot act as {name}. Remove --agent.", agent=own, reason="other_agent"
        )
    return name or own


def required_agent(name: str | None) -> str:
    """Return the calling agent, for commands that only an agent can call."""
    agent_name = agent(name)
    if agent_name is None:
        raise Invalid("No agent given. Pass --agent NAME or set CORRAL_AGENT.")
    return agent_name


def run(id: str | None = None) -> str | None:
    """Return the given run, else the run that this command was called in."""
    return id or config.run_id()
