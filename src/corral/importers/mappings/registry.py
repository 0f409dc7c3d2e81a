"""The tools whose databases can be imported, and how each is recognized."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import cast

from corral.importers.mappings.types import ToolMapping
from corral.importers.source.database import SourceDatabase
from corral.kernel.errors import Invalid

# Imported on demand, because most commands need none of them.
_MODULES = {
    "agent-yes": "agent_yes",
    "agents": "agents",
    "flightdeck": "flightdeck",
    "multishot": "multishot",
    "nanoclaw": "nanoclaw",
}
TOOL_NAMES = tuple(_MODULES)
_CORRAL: Mapping[str, Sequence[str]] = {"letters": ("mailbox",), "events": ("subject",)}


def find_tool(name: str) -> ToolMapping:
    """Return the mapping of a tool; raises Invalid for an unknown one."""
    if name not in _MODULES:
        raise Invalid(
            f"Cannot import from {name!r}. Use one of {', '.join(TOOL_NAMES)}, claude or codex."
        )
    return cast("ToolMapping", import_module(f"corral.importers.mappings.{_MODULES[name]}").TOOL)


def check_signature(
    database: SourceDatabase, tool: ToolMapping, signature: Mapping[str, Sequence[str]]
) -> None:
    """Raise Invalid for a database of another tool; the error names the tool it belongs to."""
    if _has_tables(database, signature):
        return
    if _has_tables(database, _CORRAL):
        raise Invalid(
            f"{database.path} is a store of Corral. Use `corral db restore` instead.",
            path=str(database.path),
            reason="corral_store",
        )
    others = [name for name in TOOL_NAMES if _has_tables(database, find_tool(name).signature)]
    if others:
        raise Invalid(
            f"{database.path} looks like a database of {others[0]}, not of {tool.name}. Run "
            f"`corral import {others[0]} {database.path}`.",
            path=str(database.path),
            looks_like=others[0],
            reason="other_tool",
        )
    expected = ", ".join(signature)
    actual = ", ".join(sorted(database.tables)[:8]) or "none"
    raise Invalid(
        f"{database.path} is not a database of {tool.name}, which has the tables {expected}. Its "
        f"tables are {actual}.",
        path=str(database.path),
        reason="unknown_schema",
    )


def _has_tables(database: SourceDatabase, signature: Mapping[str, Sequence[str]]) -> bool:
    return all(
        table in database.tables
        and {*columns} <= {column.lower() for column in database.tables[table]}
        for table, columns in signature.items()
    )
