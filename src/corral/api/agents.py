from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.agents import ops
from corral.domain.agents.model import Agent
from corral.domain.groups import ops as groups

P = ParamSpec("P")


def _followed(
    change: Callable[Concatenate[Tx, P], Agent],
) -> Callable[Concatenate[Tx, P], Agent]:
    """A change of an agent after which it is in the groups that its role joins."""

    @wraps(change)
    def changed(tx: Tx, /, *args: P.args, **kwargs: P.kwargs) -> Agent:
        agent = change(tx, *args, **kwargs)
        groups.follow(tx, agent)
        return agent

    return changed


class Agents(Room):
    """Lasting identities: name, role, model, instructions, tools; versioned."""

    noun = "agent"

    create = write(_followed(ops.create))
    get = read(ops.get)
    list = read(ops.list_agents, mode="one")
    edit = write(_followed(ops.edit), repeatable=True)
    versions = read(ops.versions)
    version = read(ops.version)
    grant = write(ops.grant, repeatable=True)
    revoke = write(ops.revoke)
    grants = read(ops.grants)
    allows = read(ops.allows)
    retire = write(_followed(ops.retire))
    restore = write(_followed(ops.restore))
