"""The only place that knows which engine is under us."""

from pathlib import Path
from typing import TYPE_CHECKING

from corral.db.database import Database
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid, StoreUnavailable

if TYPE_CHECKING:
    from corral.db.database import Probe


def connect(
    url: str,
    *,
    actor: str,
    clock: Clock | None = None,
    create: bool = True,
    probe: "Probe | None" = None,
) -> Database:
    """The database behind a URL, its schema not looked at yet."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        if not rest.startswith("/") or len(rest) < 2 or "\0" in rest:
            raise Invalid(
                "That URL names no file; write sqlite:///relative.db or sqlite:////absolute.db.",
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
                "PostgreSQL needs one more package; run `pip install 'corral[postgres]'`.",
                reason="missing_package",
            ) from None
        return PostgresDatabase(url, clock=clock, actor=actor, probe=probe)
    raise Invalid(
        "That is no store's URL; write sqlite:///relative.db, sqlite:////absolute.db, "
        "postgresql://user@host/database, or http://host:port of a daemon.",
        reason="bad_url",
    )
