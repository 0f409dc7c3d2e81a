"""What the rooms declare in their `sql.py` (statements, tables with states, retentions), as data.

It is found and not listed, so that the docs and the tests of all tables and statements also see
those of a room that is added.
"""

import importlib
import importlib.util
import pkgutil
from typing import TypeVar

import corral.rooms

T = TypeVar("T")


def declared(kind: type[T]) -> dict[str, T]:
    """Everything of a kind that stands in a room's `sql.py`, or in that of the insights, as
    `mail.CLAIM` and so on."""
    found: dict[str, T] = {}
    rooms = [f"corral.rooms.{room.name}" for room in pkgutil.iter_modules(corral.rooms.__path__)]
    for place in (*rooms, "corral.insights"):
        if importlib.util.find_spec(f"{place}.sql") is not None:
            for constant, value in vars(importlib.import_module(f"{place}.sql")).items():
                if isinstance(value, kind):
                    found[f"{place.rpartition('.')[2]}.{constant}"] = value
    return found
