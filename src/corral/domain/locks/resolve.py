"""What callers name, as the room knows it: projects, paths, owners; and its refusals, in words."""

import re
import time
from functools import lru_cache
from typing import Any

from corral.db.tx import Tx
from corral.domain.locks import patterns, sql, wait_queue
from corral.domain.locks.model import Lock, LockState, Mode
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.kernel.clock import SECOND, format_duration
from corral.kernel.errors import Held, Invalid
from corral.kernel.ids import number_of
from corral.kernel.path_patterns import head_of, heads_above
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json, quoted

_MODES = {mode.value: mode for mode in Mode}
ABOVE_ALL = "\U0010ffff"
_OWNER = re.compile(r"(agent|user|session|run):[^\s\x00-\x1f\x7f]{1,200}")


def project_of(tx: Tx, project: str) -> Project:
    """A project by its id or its directory."""
    if project.startswith(("/", "~", ".")):
        return projects.by_dir(tx, project)
    return projects.get(tx, project)


def pattern_of(project: Project, path: str, *, lockable: bool = True) -> str:
    folded = patterns.ignores_case(project.dir)
    return patterns.normalise(path, project.dir, folded=folded, lockable=lockable)


def pattern_as_spelled(project: Project, path: str) -> str | None:
    """The pattern of a whole path as git knows it: a link is a file of its own, wherever it leads.
    None for one outside of the project."""
    inside = f"{project.dir.rstrip('/')}/"
    if not path.startswith(inside):
        return None
    name = path[len(inside) :]
    return patterns.fold(name) if patterns.ignores_case(project.dir) else patterns.composed(name)


def owner_of(tx: Tx, agent: str) -> str:
    """Who holds a lock: an agent by its name or id, or anybody as user:NAME, run:ID and so on."""
    if not agent.startswith("agt_"):
        return _named(agent)
    from corral.domain.agents import ops as agents  # hooks name themselves, and are called often

    return f"agent:{agents.get(tx, agent).name}"


@lru_cache(1_024)
def _named(agent: str) -> str:
    if _OWNER.fullmatch(agent):
        return clean_text(agent, "The owner", most=MAX_NAME)
    from corral.domain.agents import ops as agents

    return f"agent:{agents.check_name(agent)}"


def check_mode(mode: str) -> Mode:
    found = _MODES.get(mode)
    if found is None:
        raise Invalid(f"A lock is exclusive or shared, not {mode!r}.", mode=mode)
    return found


def of_owner(tx: Tx, lock: Lock | str, agent: str | None) -> Lock:
    """A lock as it is now, for whoever has it."""
    if isinstance(lock, Lock):
        return sql.LOCKS.get(tx, check_int(lock.fence, "The fence"))
    found = sql.LOCKS.get(tx, number_of("lck", lock))
    if agent is None:
        raise Invalid(
            f"Say whose lock {found.id} is: hand in the lock as you got it, or give the agent.",
            id=found.id,
        )
    if found.owner != owner_of(tx, agent):
        raise Held(
            f"{found.id} is the lock of {found.owner}, not of {owner_of(tx, agent)}.",
            id=found.id,
            owner=found.owner,
            reason="other_owner",
        )
    return found


def lost(tx: Tx, lock: Lock) -> Held:
    """The refusal that an owner gets whose lock is not its own any more."""
    if lock.state in (LockState.HELD, LockState.WAITING, LockState.EXPIRED):
        how = f"ran out at {moment(lock.lease_until)}"
    else:
        how = f"is {lock.state}"
    now_held = [
        other
        for other in read_near(tx, lock.project_id, lock.path)
        if other.is_live(tx.now)
        and other.state is LockState.HELD
        and wait_queue.exclude(lock, other)
    ]
    by = f", and {now_held[0].owner} holds {now_held[0].path} now" if now_held else ""
    return Held(
        f"{lock.id} on {lock.path} {how}{by}; look at what changed, and acquire it again.",
        id=lock.id,
        state=lock.state,
        path=lock.path,
        fence=lock.fence,
        owner=now_held[0].owner if now_held else None,
        reason="expired",
    )


def held(now: int, path: str, lock: Lock) -> Held:
    """The refusal that names who is in the way, and until when."""
    covering = f" by its lock on {lock.path}" if lock.path != path else ""
    shown = path if path.isprintable() else repr(path)
    what = "holds" if lock.state is LockState.HELD else "is in line before you for"
    # The owner's own text, which the agent that is refused reads: in one line, in quotation marks.
    why = f", for: {quoted(lock.reason)}" if lock.reason else ""
    left = format_duration(max(lock.lease_until - now, SECOND) // SECOND * SECOND)
    return Held(
        f"{lock.owner} {what} {shown}{covering} ({lock.id}, {lock.mode}{why}) until "
        f"{moment(lock.lease_until)}, {left} from now unless renewed; wait in line for it, or work "
        "on something else.",
        path=path,
        lock=lock.id,
        owner=lock.owner,
        locked=lock.path,
        mode=lock.mode,
        until=lock.lease_until,
        reason="locked",
    )


def moment(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms // 1_000))


def read_near(tx: Tx, project_id: str, path: str) -> list[Lock]:
    """The locks that can meet a pattern, also those that have run out."""
    return tx.all(sql.NEAR, project_id=project_id, **_around(path))


@lru_cache(1_024)
def _around(path: str) -> dict[str, Any]:
    head = head_of(path)
    return {
        "heads": encode_json(heads_above(head), "The path"),
        "low": head,
        "high": f"{head[:-1]}0" if head else ABOVE_ALL,  # "0" is what follows "/"
    }
