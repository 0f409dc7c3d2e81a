"""Results of store workflows."""

import msgspec


class PruneResult(msgspec.Struct, frozen=True):
    """The rows of one table that retention deleted, or would delete."""

    table: str
    rows: int
    retention_ms: int
    project_id: str | None = None
    """The project that has its own retention time; None for all other rows."""
