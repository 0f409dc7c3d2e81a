"""Scopes of totals and budgets: `all`, or a kind and an id, such as `project:prj_1`."""

from corral.db.tx import Tx
from corral.kernel.errors import NotFound


def make_scope(kind: str, id: str | None) -> str | None:
    """Return the scope of an object; None without an id."""
    return f"{kind}:{id}" if id else None


def resolve_scope(tx: Tx, scope: str) -> str:
    """Replace the name of an agent in a scope by its id, which charges are counted by.

    Raises NotFound for an unknown agent: a budget for it would never apply.
    """
    kind, _, name = scope.partition(":")
    if kind != "agent" or name.startswith("agt_"):
        return scope
    from corral.domain.agents import ops as agents  # keeps the supervisor's imports small

    return f"agent:{agents.get(tx, name).id}"


def name_scope(tx: Tx, scope: str) -> str:
    """Replace the id of an agent in a scope by its name."""
    kind, _, id = scope.partition(":")
    if kind != "agent":
        return scope
    from corral.domain.agents import ops as agents  # keeps the supervisor's imports small

    try:
        return f"agent:{agents.get(tx, id).name}"
    except NotFound:
        return scope
