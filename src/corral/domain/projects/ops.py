"""Register, find, list, archive and delete projects."""

import os
from pathlib import Path
from typing import Any

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.projects import sql
from corral.domain.projects.model import Project, ProjectState
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.kernel.ids import ID_LENGTH
from corral.kernel.pagination import Page
from corral.kernel.unset import UNSET
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json
from corral.kernel.words import split_command

MAX_DIR = 4_096
_FULL_ID_LENGTH = len("prj_") + ID_LENGTH


def register(
    tx: Tx,
    dir: str | Path,
    *,
    command: str | None = UNSET,
    prompt: str | None = UNSET,
    must_exist: bool = True,
) -> Project:
    """Register a directory as a project, or update the existing project of that directory.

    Arguments that are left out keep their values, None clears them. Symlinks and trailing slashes
    resolve to the same project. An archived project is restored. `must_exist=False` is for a
    directory on another machine.
    """
    real = resolve_dir(dir, must_exist=must_exist)
    defaults = {
        name: check_optional_text(value, f"The {name}")
        for name, value in (("command", command), ("prompt", prompt))
        if value is not UNSET
    }
    if new_command := defaults.get("command"):
        split_command(new_command)
    new = {
        "id": tx.new_id("prj"),
        "dir": real,
        "name": os.path.basename(real) or real,
        "command": None,
        "prompt": None,
        "created_at": tx.now,
        "updated_at": tx.now,
    } | defaults
    created = create_if_absent(
        tx, sql.PROJECTS, new, on_conflict="(dir)", event_data={"dir": real} | defaults
    )
    if created is not None:
        return created
    project = get_by_dir(tx, real)
    if project.state is ProjectState.ARCHIVED:
        project = transition(tx, sql.PROJECTS, "restore", project.id, updated_at=tx.now)
    changed = {name: value for name, value in defaults.items() if getattr(project, name) != value}
    return _apply_change(tx, project.id, changed) if changed else project


def get_by_dir(tx: Tx, dir: str | Path) -> Project:
    """Return the project of a directory."""
    real = resolve_dir(dir)
    project = tx.first(sql.BY_DIR, dir=real)
    if project is None:
        raise NotFound(
            f"{real} is not a project. Register it with `corral project register {real}`.",
            dir=real,
            reason="not_registered",
        )
    return project


def find_containing(tx: Tx, path: str | Path) -> Project | None:
    """Return the innermost project that contains a path; None when there is none."""
    return tx.first(sql.CONTAINING, prefixes=_encode_parents(resolve_dir(path)))


def list_overlapping(tx: Tx, path: str | Path) -> list[Project]:
    """List the projects that contain a path and those below it; projects may be nested."""
    real = resolve_dir(path)
    below = real.rstrip("/")
    # "0" follows "/" in ASCII, so this range is everything below the directory.
    return tx.all(
        sql.OVERLAPPING, prefixes=_encode_parents(real), low=f"{below}/", high=f"{below}0"
    )


def _encode_parents(real: str) -> str:
    parents = [real[:end] or "/" for end, character in enumerate(real) if character == "/"]
    return encode_json([*parents, real], "The path")


def find_id(tx: Tx, project: str) -> str:
    """Return the id of a project, named as in `get`, as a filter for a list."""
    return sql.IDS.find(tx, project) if project.startswith("prj_") else get(tx, project).id


def get(tx: Tx, id: str) -> Project:
    """Return a project by its id, which may be shortened, its unique name, or its directory."""
    if os.path.isabs(id) or id.startswith(("~", "./", "../")) or id in (".", ".."):
        return get_by_dir(tx, id)
    if id.startswith("prj_"):
        project = tx.first(sql.PROJECTS.by_key, key_=id) if len(id) == _FULL_ID_LENGTH else None
        return project or sql.PROJECTS.get(tx, sql.IDS.resolve(tx, id))
    matches = tx.all(sql.BY_NAME, name=check_text(id, "The project", max_bytes=MAX_NAME))
    if len(matches) > 1:
        raise Ambiguous(
            f"Several projects are named {id}: {', '.join(project.id for project in matches)}. "
            "Give an id or a directory.",
            kind="project",
            candidates=[project.id for project in matches],
        )
    return matches[0] if matches else _find_by_bare_id(tx, id)


def _find_by_bare_id(tx: Tx, id: str) -> Project:
    try:
        return sql.PROJECTS.get(tx, sql.IDS.resolve(tx, id))
    except Invalid:
        if id[3:4] == "_":
            raise  # an id of another kind
        raise sql.IDS.not_found(id) from None


def list_projects(
    tx: Tx, *, archived: bool = False, after: str | None = None, limit: int = 50
) -> Page[Project]:
    """List projects, last run first, never-run last; with `archived`, including archived ones."""
    other_state = ProjectState.ARCHIVED if archived else ProjectState.ACTIVE
    return sql.LIST.page(tx, after=after, limit=limit, other_state=other_state)


def rename(tx: Tx, id: str, name: str) -> Project:
    """Rename a project; its directory and id do not change."""
    return _apply_change(
        tx, sql.IDS.resolve(tx, id), {"name": check_text(name, "The name", max_bytes=MAX_NAME)}
    )


def touch(tx: Tx, id: str) -> Project:
    """Record that a run starts in the project now."""
    touched = tx.first(sql.TOUCH, id=sql.IDS.resolve(tx, id), now=tx.now)
    if touched is None:
        raise sql.IDS.not_found(id)
    tx.emit("project", "touch", touched.id, project_id=touched.id)
    return touched


def archive(tx: Tx, id: str) -> Project:
    """Archive a project: it is hidden from lists, and its data is kept."""
    return transition(tx, sql.PROJECTS, "archive", sql.IDS.resolve(tx, id), updated_at=tx.now)


def delete(tx: Tx, id: str) -> Project:
    """Delete a project and its settings. Letters, events and the directory are kept."""
    from corral.domain.settings import ops as settings  # readers do not need it

    project = get(tx, id)
    settings.delete_scope(tx, f"project:{project.id}")
    if not tx.run(sql.DELETE, id=project.id):
        raise sql.IDS.not_found(id)
    tx.emit("project", "delete", project.id, project_id=project.id, data={"dir": project.dir})
    return project


def _apply_change(tx: Tx, id: str, changed: dict[str, Any]) -> Project:
    return transition(
        tx, sql.PROJECTS, "change", id, updated_at=tx.now, event_data=changed, **changed
    )


def resolve_dir(dir: str | Path, *, must_exist: bool = False) -> str:
    """Return the real path of a directory; raises Invalid when it must exist and does not."""
    # Called inside the transaction: most operations accept a project by its directory, and one
    # rule must resolve it for all callers. It reads metadata only, so a retry is harmless; a
    # network mount that hangs blocks the caller, and on SQLite also the other writers.
    text = check_text(os.fspath(dir), "The directory", max_bytes=MAX_DIR)
    real = os.path.realpath(os.path.expanduser(text))
    if must_exist and not os.path.isdir(real):
        raise Invalid(f"{real} is not a directory. Create it first, or correct the path.", dir=real)
    return real
