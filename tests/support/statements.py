"""Every statement that stands in a room's `sql.py`, found and not listed."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator

import corral.rooms
from corral.db.lookup import IdColumn
from corral.db.moves import StateTable
from corral.db.retention import Retention
from corral.db.statement import Statement


def statements() -> dict[str, Statement]:
    """`mail.CLAIM` and so on, with those inside tables with states and look-ups by id."""
    found: dict[str, Statement] = {}
    for room in pkgutil.iter_modules(corral.rooms.__path__):
        name = f"corral.rooms.{room.name}.sql"
        if importlib.util.find_spec(name) is not None:
            for constant, value in vars(importlib.import_module(name)).items():
                for suffix, statement in _inside(value):
                    found[f"{room.name}.{constant}{suffix}"] = statement
    return found


def _inside(value: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield "", value
    elif isinstance(value, StateTable):
        yield ".by_key", value.by_key
    elif isinstance(value, IdColumn):
        yield ".resolve", value._within
    elif isinstance(value, Retention):
        yield from ((f".{name}", getattr(value, name)) for name in ("window", "count", "forget"))
