"""Resolve the projects, paths, owners, modes and locks that callers give."""

import re
from functools import lru_cache

from corral.db.tx import Tx
from corral.domain.locks import patterns, sql
from corral.domain.locks.model import Lock, LockMode
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.kernel.errors import Held, Invalid
from corral.kernel.ids import parse_number
from corral.kernel.validation import MAX_NAME, check_int, check_text

_MODES = {mode.value: mode for mode in LockMode}
_OWNER = re.compile(r"(agent|user|session|run):[^\s\x00-\x1f\x7f]{1,200}")


def get_project(tx: Tx, project: str) -> Project:
    """Return a project by its id or directory."""
    if project.startswith(("/", "~", ".")):
        return projects.get_by_dir(tx, project)
    return projects.get(tx, project)


def resolve_pattern(project: Project, path: str, *, lockable: bool = True) -> str:
    """Return the normalized pattern of a path in a project; see `patterns.normalize_path`."""
    folded = patterns.is_case_insensitive(project.dir)
    return patterns.normalize_path(path, project.dir, folded=folded, lockable=lockable)


def to_literal_pattern(project: Project, path: str) -> str | None:
    """Return the pattern of an absolute path as git names it, without following symlinks.

    None: the path is outside the project.
    """
    root = f"{project.dir.rstrip('/')}/"
    if not path.startswith(root):
        return None
    name = path[len(root) :]
    return (
        patterns.fold_case(name)
        if patterns.is_case_insensitive(project.dir)
        else patterns.compose_unicode(name)
    )


def resolve_owner(tx: Tx, agent: str) -> str:
    """Return the owner of a lock, as agent:NAME, user:NAME, session:ID or run:ID.

    An agent may be given by its bare name or its id.
    """
    if not agent.startswith("agt_"):
        return _parse_owner(agent)
    from corral.domain.agents import ops as agents  # not imported by hooks, which pass a name

    return f"agent:{agents.get(tx, agent).name}"


@lru_cache(1_024)
def _parse_owner(agent: str) -> str:
    if _OWNER.fullmatch(agent):
        return check_text(agent, "The owner", max_bytes=MAX_NAME)
    from corral.domain.agents import ops as agents

    return f"agent:{agents.check_name(agent)}"


def parse_mode(mode: str) -> LockMode:
    """Return a lock mode by its name; raises Invalid for any other text."""
    parsed = _MODES.get(mode)
    if parsed is None:
        raise Invalid(f"Invalid lock mode {mode!r}: expected exclusive or shared.", mode=mode)
    return parsed


def get_owned(tx: Tx, lock: Lock | str, agent: str | None) -> Lock:
    """Return the current state of a lock; raises Held when `agent` does not own it."""
    if isinstance(lock, Lock):
        return sql.LOCKS.get(tx, check_int(lock.fence, "The fence"))
    current = sql.LOCKS.get(tx, parse_number("lck", lock))
    if agent is None:
        raise Invalid(
            f"The owner of {current.id} is required: pass the lock itself, or its agent.",
            id=current.id,
        )
    if current.owner != resolve_owner(tx, agent):
        raise Held(
            f"{current.id} belongs to {current.owner}, not to {resolve_owner(tx, agent)}. Give "
            "the owner with --agent.",
            id=current.id,
            owner=current.owner,
            reason="other_owner",
        )
    return current
