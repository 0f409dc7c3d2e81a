"""Changes of agents together with the groups of their role, in the caller's transaction."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.agents import ops
from corral.domain.agents.model import Agent, AgentLimits
from corral.domain.groups import ops as groups
from corral.kernel.unset import UNSET


def create(
    tx: Tx,
    name: str,
    *,
    provider: str | None = None,
    command: str | None = None,
    role: str | None = None,
    model: str | None = None,
    instructions: str | None = None,
    workspace: str | None = None,
    admin: bool = False,
    limits: AgentLimits | dict[str, Any] | None = None,
) -> Agent:
    """Create an agent with its first version; raises Conflict when the name is taken.

    A role is any text. A built-in role provides the instructions when none are given.
    """
    return _sync_groups(
        tx,
        ops.create(
            tx,
            name,
            provider=provider,
            command=command,
            role=role,
            model=model,
            instructions=instructions,
            workspace=workspace,
            admin=admin,
            limits=limits,
        ),
    )


def edit(
    tx: Tx,
    agent: str,
    *,
    provider: str | None = UNSET,
    command: str | None = UNSET,
    role: str | None = UNSET,
    model: str | None = UNSET,
    instructions: str | None = UNSET,
    workspace: str | None = UNSET,
    admin: bool = UNSET,
    limits: AgentLimits | dict[str, Any] | None = UNSET,
) -> Agent:
    """Edit an agent. Arguments that are left out keep their values, None clears them.

    New content creates a new version; runs keep the version that they used. Equal content changes
    nothing. A new built-in role replaces instructions that came from the old role.
    """
    return _sync_groups(
        tx,
        ops.edit(
            tx,
            agent,
            provider=provider,
            command=command,
            role=role,
            model=model,
            instructions=instructions,
            workspace=workspace,
            admin=admin,
            limits=limits,
        ),
    )


def retire(tx: Tx, agent: str) -> Agent:
    """Retire an agent: it gets no new work. Its history is kept and its name stays taken."""
    return _sync_groups(tx, ops.retire(tx, agent))


def restore(tx: Tx, agent: str) -> Agent:
    """Restore a retired agent."""
    return _sync_groups(tx, ops.restore(tx, agent))


def _sync_groups(tx: Tx, agent: Agent) -> Agent:
    """Add the agent to the groups of its role, and remove it from those of other roles."""
    groups.sync_memberships(tx, agent)
    return agent
