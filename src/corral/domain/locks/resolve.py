"""Resolve the projects, paths and owners that callers give; build the errors of a conflict."""

import re
import time
from functools import lru_cache
from typing import Any

from corral.db.tx import Tx
from corral.domain.locks import patterns, sql, wait_queue
from corral.domain.locks.model import Lock, LockMode, LockState
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.kernel.clock import SECOND, format_duration
from corral.kernel.display_text import quote_inline
from corral.kernel.errors import Held, Invalid
from corral.kernel.ids import parse_number
from corral.kernel.path_patterns import ancestor_prefixes, literal_prefix
from corral.kernel.text import MAX_NAME, check_int, check_text, encode_json

_MODES = {mode.value: mode for mode in LockMode}
HIGHEST_KEY = "\U0010ffff"
"""Sorts after every path."""
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


def literal_pattern(project: Project, path: str) -> str | None:
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
        raise Invalid(f"Invalid lock mode {mode!r}: use exclusive or shared.", mode=mode)
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
            f"{current.id} is a lock of {current.owner}, not of {resolve_owner(tx, agent)}.",
            id=current.id,
            owner=current.owner,
            reason="other_owner",
        )
    return current


def lost_error(tx: Tx, lock: Lock) -> Held:
    """Build the error for an owner that has lost its lock."""
    if lock.state in (LockState.HELD, LockState.WAITING, LockState.EXPIRED):
        how = f"expired at {format_time(lock.lease_until)}"
    else:
        how = f"is {lock.state}"
    holders = [
        other
        for other in list_candidates(tx, lock.project_id, lock.path)
        if other.is_live(tx.now)
        and other.state is LockState.HELD
        and wait_queue.is_conflict(lock, other)
    ]
    by = f", and {holders[0].owner} holds {holders[0].path} now" if holders else ""
    return Held(
        f"{lock.id} on {lock.path} {how}{by}. Check what changed, then acquire it again.",
        id=lock.id,
        state=lock.state,
        path=lock.path,
        fence=lock.fence,
        owner=holders[0].owner if holders else None,
        reason="expired",
    )


def held_error(now: int, path: str, lock: Lock) -> Held:
    """Build the error that names the conflicting owner and the end of its lease."""
    covering = f" by its lock on {lock.path}" if lock.path != path else ""
    shown = path if path.isprintable() else repr(path)
    verb = "holds" if lock.state is LockState.HELD else "is queued before you for"
    # The reason is text of another owner that an agent reads, so it is one quoted line.
    why = f", for: {quote_inline(lock.reason)}" if lock.reason else ""
    left = format_duration(max(lock.lease_until - now, SECOND) // SECOND * SECOND)
    return Held(
        f"{lock.owner} {verb} {shown}{covering} ({lock.id}, {lock.mode}{why}) until "
        f"{format_time(lock.lease_until)}, {left} from now unless renewed. "
        "Queue for it, or work on something else.",
        path=path,
        lock=lock.id,
        owner=lock.owner,
        locked=lock.path,
        mode=lock.mode,
        until=lock.lease_until,
        reason="locked",
    )


def format_time(ms: int) -> str:
    """Format a time in milliseconds as UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms // 1_000))


def list_candidates(tx: Tx, project_id: str, path: str) -> list[Lock]:
    """List the locks that can overlap a pattern, also expired ones."""
    return tx.all(sql.CANDIDATES, project_id=project_id, **_index_bounds(path))


@lru_cache(1_024)
def _index_bounds(path: str) -> dict[str, Any]:
    path_prefix = literal_prefix(path)
    return {
        "prefixes": encode_json(ancestor_prefixes(path_prefix), "The path"),
        "low": path_prefix,
        "high": f"{path_prefix[:-1]}0" if path_prefix else HIGHEST_KEY,  # "0" follows "/" in ASCII
    }
