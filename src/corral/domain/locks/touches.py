"""File touches: the record of which owner changed which file."""

from typing import Any

from corral.db.tx import Tx
from corral.domain.locks import resolve, sql
from corral.domain.locks.candidates import HIGHEST_KEY
from corral.domain.locks.model import FileTouch
from corral.kernel.pagination import Page
from corral.kernel.path_patterns import WHOLE_PROJECT

RETENTION = sql.TOUCHES_RETENTION


def record_touch(tx: Tx, project: str, path: str, agent: str) -> FileTouch:
    """Record that an owner changed a file."""
    target = resolve.get_project(tx, project)
    return tx.one(
        sql.ADD_TOUCH,
        project_id=target.id,
        path=resolve.resolve_pattern(target, path, lockable=False),
        owner=resolve.resolve_owner(tx, agent),
        now=tx.now,
    )


def list_touches(
    tx: Tx,
    project: str,
    path: str = WHOLE_PROJECT,
    *,
    agent: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[FileTouch]:
    """List the owners that changed a file, or the files below a directory, by path."""
    target = resolve.get_project(tx, project)
    pattern = resolve.resolve_pattern(target, path).rstrip("/")
    is_root = pattern == WHOLE_PROJECT
    bounds: dict[str, Any] = {
        "project_id": target.id,
        "path": "" if is_root else pattern,
        "below": "" if is_root else f"{pattern}/",
        "high": HIGHEST_KEY if is_root else f"{pattern}0",  # "0" follows "/" in ASCII
    }
    if agent is None:
        return sql.TOUCHES.page(tx, after=after, limit=limit, **bounds)
    owner = resolve.resolve_owner(tx, agent)
    return sql.TOUCHES_OF_OWNER.page(tx, after=after, limit=limit, owner=owner, **bounds)
