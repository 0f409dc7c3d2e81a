"""What a mapping of a tool's database is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corral.importers.row import Row

KEPT = "kept as it was"
"""The home of a column that has no place of its own here: `origins.rest`."""
KEY = "origins.row_id"
"""The home of what a row is known by."""
NOT_TAKEN = "not taken: it may be a secret"


SAME = "="
"""Instead of a table: the row says something of a thing that is here already."""


class Thing(NamedTuple):
    """A row of one of Corral's tables."""

    table: str
    values: dict[str, Any]


Make = Callable[[Row], Iterable[Thing]]


class Table(NamedTuple):
    """A table of another tool: what each of its columns becomes, and how.

    `homes` names the column here in which each of its columns is kept. `make` gives what a row
    becomes, the first being the thing itself; where it gives nothing, the row is kept as it was.
    `refs` are the columns that name rows of other tables, and `links` finds further rows that
    `make` wants the ids of.
    """

    name: str
    key: Sequence[str]
    homes: Mapping[str, str]
    make: Make | None = None
    refs: Mapping[str, str] = {}
    links: Callable[[Row], Iterable[tuple[str, str]]] | None = None
    why: str = ""
    """Why none of its rows is imported."""
    part: str = ""
    """Its name among the origins, where a table is gone through a second time for one column."""

    @property
    def origin(self) -> str:
        return self.part or self.name


class Member(NamedTuple):
    """A database of a source: its file, what it must have, and what its tables become."""

    path: Path
    signature: Mapping[str, Sequence[str]]
    tables: Sequence[Table]
    inside: str = ""
    """What it belongs to, where a source has several."""
    owner: "Table | None" = None
    """Of what it belongs to, in case nothing else tells of that."""
    owner_values: Mapping[str, str] = {}
    """What is known of that all the same."""
    partly: bool = False
    """Whether it is opened a second time for its other tables."""
    also: Sequence[str] = ()
    """Tables that were seen to when it was opened before."""


class Tool(NamedTuple):
    """Another tool: how its database is recognised, and what its tables become."""

    name: str
    about: str
    signature: Mapping[str, Sequence[str]]
    """Tables with columns that no other tool has together."""
    tables: Sequence[Table]
    around: Callable[[Path], Path] | None = None
    """The database in a folder that was given instead."""
    members: Callable[[Path], Iterator[Member]] | None = None
    """All databases of a source, where it is more than one; the first is looked at first."""
