"""Running a program so that it can change only what it is meant to.

Bubblewrap where that is there and works, else Landlock (Linux, no package needed), else nothing;
which one it is, why not a better one, and what it does not keep is always said.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


class Bounds(msgspec.Struct, frozen=True):
    """What a program may do. The system is there to read; all else is named."""

    writable: tuple[str, ...] = ()
    """Folders and files that it may change."""
    readable: tuple[str, ...] = ()
    """What it may read although it is in a hidden place."""
    hidden: tuple[str, ...] = ()
    """Folders that it does not see into: they are empty, or cannot be opened."""
    worktree: str | None = None
    """A git worktree that it may change, with as much of its repository as commits need: objects,
    its own index and its own branch's folder, not the configuration and not the hooks."""
    network: bool = True
    terminal: bool = False
    """It is used at a terminal, and keeps that."""
    own_processes: bool = True
    """It sees no process but its own (bubblewrap alone)."""


class Wrapped(msgspec.Struct, frozen=True):
    """A command as it is to be started."""

    words: list[str]
    environment: dict[str, str]
    """To be added to its environment."""
    kind: Kind
    lacks: list[str]
    """What the bounds ask for and this kind does not keep, in sentences for a person."""


class Probe(msgspec.Struct, frozen=True):
    kind: Kind
    """The best that works here."""
    why_not: dict[Kind, str]
    """Why the better ones do not."""


def probe(*, network: bool = True) -> Probe:
    """Try what this machine has, once for a process: each is really started. `network=False` asks
    for one that can keep a program off the network."""
    raise NotImplementedError


def wrap(
    words: Sequence[str],
    bounds: Bounds,
    *,
    scratch: str,
    kind: Kind | None = None,
    environment: Mapping[str, str] | None = None,
) -> Wrapped:
    """A command inside of bounds, by the best kind that works here or by the one that is named.

    `scratch` is a folder of its own for what it writes to a temporary place; it is made, for its
    user alone. Refused for a kind that does not work here, and for a path that is not there.
    """
    raise NotImplementedError
