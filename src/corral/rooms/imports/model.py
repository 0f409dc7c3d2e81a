"""An import is one file of another program's, and how far it was read."""

import msgspec


class Import(msgspec.Struct, frozen=True):
    source: str
    path: str
    session_id: str
    read_bytes: int
    turns: int
    charges: int
    updated_at: int
