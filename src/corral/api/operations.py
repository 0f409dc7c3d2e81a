"""The table of operations: every verb of every room, as data.

It is read off the library's own classes, so it cannot differ from them. Interfaces and docs are
made from it.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from corral.api import Corral
from corral.api.operation import Operation, Room


class Row(NamedTuple):
    """One operation: `corral.<attribute>.<verb>`, `corral <noun> <verb>`."""

    attribute: str
    noun: str
    verb: str
    kind: str
    """read, write, or method: one that composes operations or needs more than a transaction."""
    signature: inspect.Signature
    help: str


def attributes() -> list[str]:
    """The attributes of an open store that are rooms; nothing is loaded for it."""
    return [name for name, found in vars(Corral).items() if isinstance(found, cached_property)]


def room_of(attribute: str) -> type[Room]:
    """The class of a room. Its property imports and builds it; that needs no store."""
    return type(vars(Corral)[attribute].func(_NoStore()))


def rooms() -> dict[str, type[Room]]:
    """Every attribute of an open store that is a room, and its class."""
    return {attribute: room_of(attribute) for attribute in attributes()}


def operations() -> Iterator[Row]:
    for attribute, room in rooms().items():
        for verb, member in vars(room).items():
            row = None if verb.startswith("_") else describe(attribute, room, verb, member)
            if row is not None:
                yield row


def describe(attribute: str, room: type[Room], verb: str, member: Any) -> Row | None:
    """The row of a member of a room's class; None when it is no operation."""
    kind: str
    if isinstance(member, Operation):
        kind, function = member.kind, member.function
    elif inspect.isfunction(member):
        kind, function = "method", member
    else:
        return None
    signature = _without_first(function)
    return Row(attribute, room.noun, verb, kind, signature, _first_line(member))


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _first_line(member: Any) -> str:
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


class _NoDatabase:
    """Not inside a run, and not an agent's."""

    origin, actor = None, ""


class _NoStore:
    _database: Any = _NoDatabase()
