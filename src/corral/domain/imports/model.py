"""An import is one file of another program, and how far it was read."""

from typing import Any

import msgspec


class Import(msgspec.Struct, frozen=True):
    """A transcript file that is imported into a session."""

    source: str
    path: str
    session_id: str
    read_bytes: int
    turns: int
    charges: int
    updated_at: int
    charged_until: int = 0
    """The usage up to this offset was charged by an earlier import, whose session was deleted."""


class Origin(msgspec.Struct, frozen=True):
    """A row of another program's database, and the object that was created from it."""

    tool: str
    source: str
    source_table: str
    row_id: str
    record_table: str | None
    id: str | None
    unmapped: Any
    problems: list[str] | None
    imported_at: int
    changed_at: int | None
