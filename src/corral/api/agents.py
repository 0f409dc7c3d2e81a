"""Operations of `store.agents`."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.api.operation import Resource, read, write
from corral.db.tx import Tx
from corral.domain.agents import ops
from corral.domain.agents.model import Agent
from corral.domain.groups import ops as groups

P = ParamSpec("P")


def _updating_groups(
    change: Callable[Concatenate[Tx, P], Agent],
) -> Callable[Concatenate[Tx, P], Agent]:
    """Add the agent to the groups of its role after a change, in the same transaction."""

    @wraps(change)
    def change_and_update(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> Agent:
        agent = change(tx, *args, **kwargs)
        groups.sync_memberships(tx, agent)
        return agent

    return change_and_update


class Agents(Resource):
    """Agents: lasting identities with a name, a role, a model, instructions and tools.

    Every edit creates a new version; versions are immutable.
    """

    noun = "agent"

    create = write(_updating_groups(ops.create))
    get = read(ops.get)
    list = read(ops.list_agents, mode="one")
    edit = write(_updating_groups(ops.edit), repeatable=True)
    versions = read(ops.list_versions)
    version = read(ops.get_version)
    grant = write(ops.grant, repeatable=True)
    revoke = write(ops.revoke)
    grants = read(ops.list_grants)
    allows = read(ops.is_tool_allowed)
    retire = write(_updating_groups(ops.retire))
    restore = write(_updating_groups(ops.restore))
