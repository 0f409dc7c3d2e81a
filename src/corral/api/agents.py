"""Operations of `store.agents`."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.api import agent_rules as rules
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
    subjects = ("agent",)
    are_in_projects = False

    create = write(_updating_groups(ops.create), people_only=True)
    get = read(ops.get, agent=rules.only_self)
    list = read(ops.list_agents, mode="one")
    edit = write(_updating_groups(ops.edit), repeatable=True, people_only=True)
    versions = read(ops.list_versions)
    version = read(ops.get_version)
    grant = write(ops.grant, repeatable=True, people_only=True)
    revoke = write(ops.revoke, people_only=True)
    grants = read(ops.list_grants, agent=rules.only_self)
    allows = read(ops.is_tool_allowed, agent=rules.only_self)
    retire = write(_updating_groups(ops.retire), people_only=True)
    restore = write(_updating_groups(ops.restore), people_only=True)
