"""Every statement of the `sql.py` modules and of insights, found by reflection."""

from collections.abc import Iterator

from corral.db.gapless_insert import GaplessInsert
from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows, Retention, ScopedStatement
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Statement
from corral.services.store.declarations import find_declarations


def statements() -> dict[str, Statement]:
    """Return all statements by name, such as `mail.CLAIM_UNORDERED`.

    Includes those of state tables, look-ups and retention.
    """
    return {
        name + suffix: statement
        for name, value in find_declarations(object).items()
        for suffix, statement in _inside(value)
    }


def _inside(value: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Statement):
        yield "", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from ((f"[{key}]{suffix}", statement) for suffix, statement in _inside(item))
    elif isinstance(value, Listing):
        yield "", value.query
    elif isinstance(value, StatefulTable):
        yield ".by_key", value.by_key
    elif isinstance(value, GaplessInsert):
        yield ".first", value.update
        yield ".then", value.insert
    elif isinstance(value, IdColumn):
        yield ".resolve", value._in_range
    else:
        yield from _of_retention(value)


def _of_retention(value: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(value, Retention):
        yield ".window", value.window
        for name in ("count", "delete"):
            yield from ((f".{name}{part}", item) for part, item in _inside(getattr(value, name)))
    elif isinstance(value, PrunableRows):
        yield from _inside(value.select)
        yield from _inside(dict(enumerate(value.counts)))
    elif isinstance(value, ScopedStatement):
        for (scope, imported), item in value.variants.items():
            yield f".{scope}[{imported}]", item
