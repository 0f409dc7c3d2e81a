"""The tools whose databases can be brought in, and how each is recognised."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import cast

from corral.importers.mapping import Tool
from corral.importers.source.database import Foreign
from corral.kernel.errors import Invalid

# Loaded when they are wanted: most commands want none.
_MODULES = {
    "agent-yes": "agent_yes",
    "agents": "agents",
    "flightdeck": "flightdeck",
    "multishot": "multishot",
    "nanoclaw": "nanoclaw",
}
NAMES = tuple(_MODULES)
_OURS: Mapping[str, Sequence[str]] = {"letters": ("mailbox",), "events": ("subject",)}


def tool_of(name: str) -> Tool:
    if name not in _MODULES:
        raise Invalid(
            f"{name!r} cannot be imported; take one of {', '.join(NAMES)}, claude or codex."
        )
    return cast("Tool", import_module(f"corral.importers.{_MODULES[name]}").TOOL)


def check_is_of(foreign: Foreign, tool: Tool, signature: Mapping[str, Sequence[str]]) -> None:
    """Refuse what is not that tool's database, and say whose it seems to be."""
    if _fits(foreign, signature):
        return
    if _fits(foreign, _OURS):
        raise Invalid(
            f"{foreign.path} is a store of Corral itself; bring it in with `corral db restore`.",
            path=str(foreign.path),
            reason="corral_store",
        )
    others = [name for name in NAMES if _fits(foreign, tool_of(name).signature)]
    if others:
        raise Invalid(
            f"{foreign.path} looks like a database of {others[0]}, not of {tool.name}; "
            f"run `corral import {others[0]} {foreign.path}`.",
            path=str(foreign.path),
            looks_like=others[0],
            reason="other_tool",
        )
    wanted = ", ".join(signature)
    found = ", ".join(sorted(foreign.tables)[:8]) or "none"
    raise Invalid(
        f"{foreign.path} is no database of {tool.name}: that has the tables {wanted}, and this "
        f"one has {found}.",
        path=str(foreign.path),
        reason="unknown_schema",
    )


def _fits(foreign: Foreign, signature: Mapping[str, Sequence[str]]) -> bool:
    return all(
        table in foreign.tables
        and {*columns} <= {column.lower() for column in foreign.tables[table]}
        for table, columns in signature.items()
    )
