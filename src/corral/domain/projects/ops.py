"""Registering directories and keeping what is known of them."""

import os
from pathlib import Path
from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.projects import sql
from corral.domain.projects.model import Project, ProjectState
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.kernel.ids import LENGTH
from corral.kernel.pagination import LAST_ID, LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, command_words, encode_json
from corral.kernel.unset import KEEP

MAX_DIR = 4_096
_WHOLE_ID = len("prj_") + LENGTH


def register(
    tx: Tx,
    dir: str | Path,
    *,
    command: str | None = KEEP,
    prompt: str | None = KEEP,
    must_exist: bool = True,
) -> Project:
    """Make a directory a project, or change what is known of it; its id stays the same.

    What is left out is kept and None clears it. Symlinks and trailing slashes lead to the same
    project. An archived project is taken up again. `must_exist` is left out for a directory of
    another machine.
    """
    real = real_dir(dir, must_exist=must_exist)
    given = {
        name: clean_text(value, f"The {name}") if value else None
        for name, value in (("command", command), ("prompt", prompt))
        if value is not KEEP
    }
    if new_command := given.get("command"):
        command_words(new_command)
    new = {
        "id": tx.new_id("prj"),
        "dir": real,
        "name": os.path.basename(real) or real,
        "command": None,
        "prompt": None,
        "created_at": tx.now,
        "updated_at": tx.now,
    } | given
    made = create(tx, sql.PROJECTS, new, unless="(dir)", note={"dir": real} | given)
    if made is not None:
        return made
    found = by_dir(tx, real)
    if found.state is ProjectState.ARCHIVED:
        found = move(tx, sql.PROJECTS, "restore", found.id, updated_at=tx.now)
    changed = {name: value for name, value in given.items() if getattr(found, name) != value}
    return _change(tx, found.id, changed) if changed else found


def by_dir(tx: Tx, dir: str | Path) -> Project:
    """The project of a directory."""
    real = real_dir(dir)
    found = tx.one(sql.BY_DIR, dir=real)
    if found is None:
        raise NotFound(
            f"{real} is no project yet; run `corral project register {real}`.",
            dir=real,
            reason="not_registered",
        )
    return found


def around(tx: Tx, path: str | Path) -> Project | None:
    """The project that a path is in: of its own directory, or of the nearest one above it."""
    return tx.one(sql.AROUND, heads=_heads(real_dir(path)))


def near(tx: Tx, path: str | Path) -> list[Project]:
    """Every project that a path is in, and those that are in it: one may lie in another."""
    real = real_dir(path)
    below = real.rstrip("/")
    # "0" is what follows "/".
    return tx.all(sql.NEAR, heads=_heads(real), low=f"{below}/", high=f"{below}0")


def _heads(real: str) -> str:
    above = [real[:end] or "/" for end, character in enumerate(real) if character == "/"]
    return encode_json([*above, real], "The path")


def find_id(tx: Tx, given: str) -> str:
    """Return the id of a project, given as for `get`, as a filter for a list."""
    return sql.IDS.find(tx, given) if given.startswith("prj_") else get(tx, given).id


def get(tx: Tx, id: str) -> Project:
    """A project by its id, which may be shortened, a name that no other has, or its directory."""
    if os.path.isabs(id) or id.startswith(("~", "./", "../")) or id in (".", ".."):
        return by_dir(tx, id)
    if id.startswith("prj_"):
        whole = tx.one(sql.PROJECTS.by_key, key_=id) if len(id) == _WHOLE_ID else None
        return whole or sql.PROJECTS.get(tx, sql.IDS.resolve(tx, id))
    named = tx.all(sql.BY_NAME, name=clean_text(id, "The project", most=MAX_NAME))
    if len(named) > 1:
        raise Ambiguous(
            f"Several projects are called {id}: {', '.join(each.id for each in named)}; give an id "
            "or a directory.",
            kind="project",
            candidates=[each.id for each in named],
        )
    return named[0] if named else _by_bare_id(tx, id)


def _by_bare_id(tx: Tx, id: str) -> Project:
    try:
        return sql.PROJECTS.get(tx, sql.IDS.resolve(tx, id))
    except Invalid:
        if id[3:4] == "_":
            raise  # an id of another kind
        raise sql.IDS.missing(id) from None


def list_projects(
    tx: Tx, *, archived: bool = False, after: str | None = None, limit: int = 50
) -> Page[Project]:
    """Projects, last run first, never-run last; archived ones only when asked for."""
    run_at, id = decode_cursor(after, LAST_NUMBER, LAST_ID)
    rows = tx.all(
        sql.LIST,
        run_at=run_at,
        id=id,
        limit=check_limit(limit) + 1,
        also=ProjectState.ARCHIVED if archived else ProjectState.ACTIVE,
    )
    return page_of(rows, limit, lambda project: (project.last_run_at or 0, project.id))


def rename(tx: Tx, id: str, name: str) -> Project:
    """Give a project another name; its directory and id stay."""
    return _change(
        tx, sql.IDS.resolve(tx, id), {"name": clean_text(name, "The name", most=MAX_NAME)}
    )


def touch(tx: Tx, id: str) -> Project:
    """Note that something runs in the project now."""
    touched = tx.one(sql.TOUCH, id=sql.IDS.resolve(tx, id), now=tx.now)
    if touched is None:
        raise sql.IDS.missing(id)
    tx.note("project", "touch", touched.id, project_id=touched.id)
    return touched


def archive(tx: Tx, id: str) -> Project:
    """Take a project out of the lists; everything about it is kept."""
    return move(tx, sql.PROJECTS, "archive", sql.IDS.resolve(tx, id), updated_at=tx.now)


def delete(tx: Tx, id: str) -> Project:
    """Forget a project and what was chosen for it. Letters, events and the directory stay."""
    from corral.domain.settings import ops as settings  # not for those who only look

    project = get(tx, id)
    settings.forget_scope(tx, f"project:{project.id}")
    if not tx.run(sql.DELETE, id=project.id):
        raise sql.IDS.missing(id)
    tx.note("project", "delete", project.id, project_id=project.id, data={"dir": project.dir})
    return project


def _change(tx: Tx, id: str, changed: dict[str, Any]) -> Project:
    return move(tx, sql.PROJECTS, "change", id, updated_at=tx.now, note=changed, **changed)


def real_dir(dir: str | Path, *, must_exist: bool = False) -> str:
    """The one path that a directory has, however it was written."""
    text = clean_text(os.fspath(dir), "The directory", most=MAX_DIR)
    real = os.path.realpath(os.path.expanduser(text))
    if must_exist and not os.path.isdir(real):
        raise Invalid(f"{real} is no directory; create it first, or correct the path.", dir=real)
    return real
