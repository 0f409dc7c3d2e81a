"""The table of operations: every verb of every room, as data.

It is read off the library's own classes, so it cannot differ from them. Interfaces and docs are
made from it.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from corral.library import Corral
from corral.library.operation import Operation, Room


class Row(NamedTuple):
    """One operation: `corral.<attribute>.<verb>`, `corral <noun> <verb>`."""

    attribute: str
    noun: str
    verb: str
    kind: str
    """read, write, or method: one that composes operations or needs more than a transaction."""
    signature: inspect.Signature
    help: str


def rooms() -> dict[str, type[Room]]:
    """Every attribute of an open store that is a room, and its class."""
    found: dict[str, type[Room]] = {}
    for name, attribute in vars(Corral).items():
        function = getattr(attribute, "func", None)
        if function is not None:
            # The property imports and builds the room; a room needs no store to be looked at.
            room = function(_NoStore())
            found[name] = type(room)
    return found


def operations() -> Iterator[Row]:
    for attribute, room in rooms().items():
        for verb, member in vars(room).items():
            if not verb.startswith("_") and (described := _describe(member)) is not None:
                kind, signature, help = described
                yield Row(attribute, room.noun, verb, kind, signature, help)


def _describe(member: Any) -> tuple[str, inspect.Signature, str] | None:
    if isinstance(member, Operation):
        return member.kind, _without_first(member.function), _first_line(member)
    if inspect.isfunction(member):
        return "method", _without_first(member), _first_line(member)
    return None


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _first_line(member: Any) -> str:
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


class _NoStore:
    _database: Any = None
