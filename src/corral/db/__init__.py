"""The only layer that knows which database engine a store uses."""

from pathlib import Path
from typing import TYPE_CHECKING

from corral.db.database import Database
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, StoreUnavailable

if TYPE_CHECKING:
    from corral.db.types import Probe


def connect(
    url: str,
    *,
    actor: str,
    clock: Clock | None = None,
    create: bool = True,
    probe: "Probe | None" = None,
) -> Database:
    """Open the database behind a URL, without checking its schema.

    Raises Invalid for a malformed URL, StoreUnavailable if the database cannot be used. `create`
    allows a missing SQLite file to be created.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        if not rest.startswith("/") or len(rest) < 2 or "\0" in rest:
            raise Invalid(
                "The store's URL names no file. Use sqlite:///relative.db or "
                "sqlite:////absolute.db.",
                reason="bad_url",
            )
        from corral.db.sqlite import SqliteDatabase

        return SqliteDatabase(
            Path(rest[1:]).absolute(),
            clock=clock,
            actor=actor,
            create=create,
            probe=probe,
        )
    if scheme in ("postgresql", "postgres") and separator:
        try:
            from corral.db.postgres import PostgresDatabase
        except ImportError:
            raise StoreUnavailable(
                "PostgreSQL needs an additional package. Run `pip install 'corral[postgres]'`.",
                reason="missing_package",
            ) from None
        return PostgresDatabase(url, clock=clock, actor=actor, probe=probe)
    raise Invalid(
        "Invalid store URL: expected sqlite:///relative.db, sqlite:////absolute.db, "
        "postgresql://user@host/database, or http://host:port of a daemon.",
        reason="bad_url",
    )
