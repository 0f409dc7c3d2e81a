"""What the rooms declare in their `sql.py` and `…_sql.py`, as data: statements, tables with states,
retentions.

It is found and not listed, so that the docs and the tests of all tables and statements also see
those of a room that is added.
"""

import importlib
import pkgutil
from functools import cache
from typing import TypeVar

import corral.domain

T = TypeVar("T")


def declared(kind: type[T]) -> dict[str, T]:
    """Everything of a kind that stands in a room's statements, or in those of the insights, as
    `mail.CLAIM` and so on."""
    return {name: value for name, value in _constants().items() if isinstance(value, kind)}


@cache  # the modules stay as they are for as long as a program runs
def _constants() -> dict[str, object]:
    found: dict[str, object] = {}
    rooms = [f"corral.domain.{room.name}" for room in pkgutil.iter_modules(corral.domain.__path__)]
    for place in (*rooms, "corral.domain.insights"):
        path = importlib.import_module(place).__path__
        names = [each.name for each in pkgutil.iter_modules(path) if each.name.endswith("sql")]
        for name in sorted(names, key=lambda name: (name != "sql", name)):
            for constant, value in vars(importlib.import_module(f"{place}.{name}")).items():
                found[f"{place.rpartition('.')[2]}.{constant}"] = value
    return found
